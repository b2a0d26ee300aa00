"""
Code that its caller can leave.

    threads      blocking code in a thread; a caller that has waited long enough goes on without it
    processes    code in a child process, which is killed with all that it started
    supervisor   what runs on the other side: the supervisor of the children, a child, exceptions that travel
"""
