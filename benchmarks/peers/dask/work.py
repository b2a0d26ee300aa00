"""Dask: futures of a local cluster of two processes."""

import stages
from distributed import Client, LocalCluster


def main():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):

        def run(items):
            futures = range(items)
            for step in (stages.first, stages.second, stages.third):
                futures = client.map(step, futures, retries=stages.ATTEMPTS - 1, pure=False)
            return sum(client.gather(futures))

        stages.time_it("distributed", run)


if __name__ == "__main__":  # its workers import this
    main()
