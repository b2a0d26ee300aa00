"""
Durable jobs: functions whose calls are kept in the store until a worker has done them.

    job           Job, the door: a function, its settings, its arguments as a payload and back
"""
