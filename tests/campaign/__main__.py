"""Runs many random configs, each twice and in processes that hash differently: no fault, the books hold, the same bytes.

    python -m tests.campaign [--number 200] [--seed 1] [--jobs 2]

Config k is made of seed + k - 1 alone, so `--number 1 --seed S` makes the one of seed S again. One that fails is made smaller
as long as it fails in the same way, and printed.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import yaml
from tqdm import tqdm

from tests.campaign.configs import config
from tests.campaign.draws import Section
from tests.campaign.running import MAX_SECONDS, Outcome, run_config, run_seed
from tests.campaign.shrink import shrunk

MAX_SHRUNK = 5  # faults of a campaign; what is wrong once is mostly wrong often


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=200, help="of configs")
    parser.add_argument("--seed", type=int, default=1, help="of the first config; each next one has the next seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.number)
    once, again = (run_all(seeds, options.jobs, hash_seed) for hash_seed in ("1", "2"))
    faults = {seed: fault_of(once[seed], again[seed]) for seed in seeds if fault_of(once[seed], again[seed])}
    report(once, faults)
    for seed in list(faults)[:MAX_SHRUNK]:
        print(f"\nseed {seed}: {faults[seed]}\n{yaml.safe_dump(smallest(seed, faults[seed]), sort_keys=False)}", flush=True)
    return 1 if faults else 0


def run_all(seeds: Sequence[int], jobs: int, hash_seed: str) -> dict[int, Outcome]:
    """Runs the configs of these seeds in processes that hash with `hash_seed`."""
    os.environ["PYTHONHASHSEED"] = hash_seed
    found: dict[int, Outcome] = {}
    with tqdm(total=len(seeds), unit=" configs", desc=f"hash seed {hash_seed}", disable=None) as bar:
        for seed, outcome in in_pool(seeds, jobs):
            found[seed] = outcome
            bar.update()
    for seed in [seed for seed, outcome in found.items() if outcome.fault == DIED]:  # all that shared the pool with it
        found.update(in_pool([seed], 1))
    return found


def in_pool(seeds: Sequence[int], jobs: int) -> Iterator[tuple[int, Outcome]]:
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, future in [(seed, pool.submit(run_seed, seed)) for seed in seeds]:
            yield seed, outcome_of(future)


DIED = f"its process died, or took over {MAX_SECONDS} s"


def outcome_of(future: "Future[Outcome]") -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool:
        return Outcome(fault=DIED)


def fault_of(once: Outcome, again: Outcome) -> str:
    """Returns what is wrong with a config, by its two runs."""
    return once.fault or again.fault or ("" if once == again else "its two runs differ")


def report(outcomes: dict[int, Outcome], faults: dict[int, str]) -> None:
    refused = {seed: outcome.refusal for seed, outcome in outcomes.items() if outcome.refusal}
    num_requests = sum(outcome.num_requests for outcome in outcomes.values())
    print(
        f"{len(outcomes)} configs twice: {len(outcomes) - len(refused) - len(faults)} ran, with {num_requests:,} requests; "
        f"{len(refused)} refused; {len(faults)} failed"
    )
    for seed, refusal in refused.items():
        print(f"  seed {seed:6} refused: {refusal[:200]}")
    for seed, fault in faults.items():
        print(f"  seed {seed:6} FAILED:  {fault[:300]}")


def smallest(seed: int, fault: str) -> Section:
    """Returns the config of this seed made smaller, as long as the fault begins alike."""
    kind = fault[:40]
    with tempfile.TemporaryDirectory() as folder:
        document = config(seed, Path(folder))
        if fault == DIED or not run_config(document, Path(folder)).fault.startswith(kind):
            return document
        return shrunk(document, lambda one: run_config(one, Path(folder)).fault.startswith(kind))


if __name__ == "__main__":
    sys.exit(main())
