"""The command line: `daybreak CONFIG ...`, or `python run_experiment.py CONFIG ...` in a checkout."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from experiments.faults import of_machine, seen
from sim.errors import ConfigError, EngineError, TraceError
from sim.limits import MAX_SEED
from sim.outside import names_in
from sim.texts import bounded, nearest

if TYPE_CHECKING:
    from experiments.running import Outcome
    from experiments.settings.loading import RunConfig

OK, FAILED, USERS_MISTAKE, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Refuses unknown options with the nearest one."""

    def error(self, message: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings]
        for word in message.removeprefix("unrecognized arguments: ").split() if "unrecognized" in message else []:
            match = nearest(word.partition("=")[0], known)
            message = f"no option '{word}'" + (f"; did you mean {match}?" if match else "")
            break
        self.exit(USERS_MISTAKE, f"{self.prog}: {message}\n{self.format_usage()}")


def parser() -> argparse.ArgumentParser:
    """Returns the options of the command."""
    options = _Parser(
        prog="run_experiment.py" if Path(sys.argv[0]).name == "run_experiment.py" else "daybreak",
        description="Runs experiments and writes their results, a summary and a picture.",
        epilog="Exit code 0: done; 1: a check or a real engine failed, or a bug of ours; 2: a mistake in a config, "
        "traffic file or code of your own, or the machine refused something.",
        allow_abbrev=False,
    )
    add = options.add_argument
    add("configs", nargs="*", metavar="CONFIG", help="YAML files, one experiment each, or names of shipped ones")
    add("--out", type=Path, metavar="DIR", help="where results go (default: results; results/smoke with --smoke)")
    add("--jobs", type=_positive, metavar="N", help="parallel processes (default: one per CPU)")
    add("--seed", type=_seed, metavar="N", help="replaces the seeds of the configs")
    add("--set", nargs="+", action="extend", default=[], metavar="PATH=VALUE", dest="sets",
        help="changes a config: --set traffic.limit=1000 pools.main.autoscaler.kind=fixed")  # fmt: skip
    add("--smoke", action="store_true", help="shrinks every run to seconds: its first 2,000 requests, its first seed")
    add("--dry-run", action="store_true", help="checks the configs and prints them with all defaults; runs nothing")
    add("--force", action="store_true", help="runs even where a whole result of the same config lies")
    add("--check", type=Path, metavar="BASELINE", help="compares the percentiles with a file; exit code 1 if one moved")
    add("--write-baseline", type=Path, metavar="BASELINE", help="writes that file from these runs")
    add("--schema", action="store_true", help="prints the JSON Schema of a config and stops")
    return options


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, given '{text}'")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdigit() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {MAX_SEED:,}, given '{text}'")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; mistakes of the user are told without a traceback."""
    options = parser().parse_args(arguments)
    # `--set a=1 configs/x.yaml`: a list of changes ends where the files go on
    options.configs += [word for word in options.sets if "=" not in word and word.endswith((".yaml", ".yml"))]
    options.sets = [word for word in options.sets if word not in options.configs]
    try:
        code = _main(options)
        sys.stdout.flush()  # here, where a full disk can still be said
        return code
    except (ConfigError, TraceError) as error:
        print(error, file=sys.stderr)
        return USERS_MISTAKE
    except KeyboardInterrupt:
        print("interrupted; whole results are kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `... --schema | head`
        _drop_output()
        return OK
    except (OSError, MemoryError) as error:
        refused = of_machine(error)
        if refused is None:
            raise
        print(refused, file=sys.stderr)
        _drop_output()
        return USERS_MISTAKE


def _drop_output() -> None:
    """Lets nothing more go to stdout, which takes nothing more: at its end, Python would try again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(options: argparse.Namespace) -> int:
    if options.schema:
        from experiments.reference import whole_schema

        print(json.dumps(whole_schema(), indent=2))
        return OK
    if not options.configs:
        raise ConfigError(f"no config given; try: {parser().prog} configs/day_forecast_vs_reactive.yaml (or --help)")
    if options.check and not options.check.is_file():
        raise ConfigError(f"{options.check}: no such file; --write-baseline makes it")
    baseline = options.write_baseline
    if baseline and (baseline.is_dir() or not baseline.parent.is_dir()):
        raise ConfigError(f"--write-baseline {baseline}: {'is a folder' if baseline.is_dir() else 'no such folder'}")
    runs = load_all(options.configs, options)
    for run in runs:
        if run.experiment.kind != "simulate" and (options.check or options.write_baseline):
            raise ConfigError(
                f"{run.source}: --check and --write-baseline compare percentiles of simulations; "
                f"its kind is {run.experiment.kind}"
            )
    if options.dry_run:
        print("\n".join(_described_all(runs)))
        return OK
    return _run(runs, options)


def load_all(paths: Sequence[str], options: argparse.Namespace) -> list["RunConfig"]:
    """Returns the runs of all files.

    Raises:
        ConfigError: with the mistakes of all of them.
    """
    from experiments.settings.loading import load

    runs, mistakes = [], []
    for path in dict.fromkeys(paths):
        try:
            runs += load(path, options.sets, options.seed, options.smoke)
        except (ConfigError, TraceError) as error:
            mistakes.append(str(error))
            continue
        if runs[-1].source != str(Path(path)):
            print(f"{path}: not here; the shipped {runs[-1].source}", file=sys.stderr)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return runs


def _described_all(runs: list["RunConfig"]) -> list[str]:
    texts = []
    mistakes: dict[str, None] = {}
    for run in runs:
        try:
            texts.append(described(run))
        except Exception as error:
            whose = seen(error, names_in(run.document))
            if not isinstance(whose, (ConfigError, TraceError)):
                raise
            mistakes[f"{run.source}: {whose}"] = None
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return texts


def described(run: "RunConfig") -> str:
    """Returns a run's resolved config as YAML, with what follows from it as comments."""
    lines = [f"{run.name}, seed {run.seed}, config {run.hash[:12]}", *run.experiment.describe()]
    comments = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"---\n{comments}\n{run.yaml}"


def _run(runs: list["RunConfig"], options: argparse.Namespace) -> int:
    from experiments.running import claimed, folder_of, gather, run_all
    from experiments.settings.tasks import report_of

    out = options.out or Path("results/smoke" if options.smoke else "results")
    shows = True if sys.stderr.isatty() else None
    code, failed = OK, dict[str, dict[str, str]]()  # of each experiment, why which of its runs failed
    with claimed(runs, out):
        for outcome in run_all(runs, out, options.jobs or os.cpu_count() or 1, options.force, shows):
            run = outcome.run
            if outcome.is_reused:
                print(f"{run.name}: kept, {outcome.folder} has it whole; --force runs it again", file=sys.stderr)
            elif outcome.error is not None:
                failed.setdefault(run.experiment.name, {})[run.slug] = _one_line(outcome.error)
                code = max(code, _told(outcome))
        folders: list[tuple[str, list[Path]]] = []  # of each experiment: its kind, and where its runs are
        for name, group in groupby(runs, key=lambda run: run.experiment.name):
            done = [run for run in group if run.slug not in failed.get(name, {})]
            if done:
                gather(done, out)
                folders.append((done[0].experiment.kind, [folder_of(run, out) for run in done]))
        for kind, those in groupby(folders, key=lambda pair: pair[0]):
            missing = (failed,) if kind == "simulate" else ()  # its page is about all runs together
            report_of(kind)([folder for _, several in those for folder in several], *missing)
        simulated = [folder for kind, several in folders if kind == "simulate" for folder in several]
        return max(code, _compared(simulated, options))


def _one_line(error: BaseException) -> str:
    return bounded(" ".join(str(error).split()) or type(error).__name__, 300)


def _told(outcome: "Outcome") -> int:
    """Says why a run failed, and returns the exit code for it."""
    if isinstance(outcome.error, (ConfigError, TraceError, EngineError)):
        print(f"{outcome.run.source}: {outcome.run.name}: {outcome.error}", file=sys.stderr)
        return FAILED if isinstance(outcome.error, EngineError) else USERS_MISTAKE
    print(f"{outcome.run.name} failed, and it is our fault, please report it:\n{outcome.details}", file=sys.stderr)
    return FAILED


def _compared(folders: list[Path], options: argparse.Namespace) -> int:
    if not folders or not (options.check or options.write_baseline):
        return OK
    from experiments import regression

    moved = regression.check(folders, options.check) if options.check else []
    for line in moved:
        print(line)
    if options.check and not moved:
        print(f"{options.check}: no percentile moved")
    if options.write_baseline:
        regression.write_baseline(folders, options.write_baseline)
    return FAILED if moved else OK
