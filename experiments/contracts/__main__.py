"""`python -m experiments.contracts my_routers:mine [OPTION=VALUE ...]`: does a policy of your own do what every one must?"""

import argparse
import sys
from typing import Any

from pydantic import ValidationError

import routers
from autoscalers import Deciding, Forecast, JointAutoscaler
from autoscalers.forecaster import Forecaster
from experiments.contracts import AutoscalerContract, RouterContract, TrafficContract
from experiments.contracts.checks import results
from experiments.settings.router import ROUTER
from experiments.settings.yaml_files import parse_yaml
from sim.errors import ConfigError
from sim.outside import load_external
from traces import Traffic


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks that are for what is named; returns 0 if all hold, 1 if some do not, 2 if it cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m experiments.contracts", description=(__doc__ or "").split("]`: ")[1])
    parser.add_argument("policy", help="package.module:name of a router, an autoscaler, a forecaster or a kind of traffic")
    parser.add_argument(
        "options", nargs="*", help="its options, such as d=3 or rate_per_s=2.0; of a joint autoscaler also pools=[a, b]"
    )
    asked = parser.parse_args(arguments)
    try:
        given = {name: parse_yaml(value) for name, _, value in (option.partition("=") for option in asked.options)}
        what, contract = _contract(load_external(asked.policy), given)
    except ValidationError as error:
        places = ((".".join(map(str, one["loc"])), one["msg"]) for one in error.errors())
        print(*(f"{asked.policy}: {place}: {said}" for place, said in places), sep="\n", file=sys.stderr)
        return 2
    except (ValueError, ConfigError) as error:
        print(f"{asked.policy}: {error}", file=sys.stderr)
        return 2
    print(f"{asked.policy}, {what}:")
    found = list(results(contract))
    for one in found:
        mark = {True: "holds", False: "FAILS", None: "     "}[one.held]
        print(f"  {mark}  {one.name}{f': {one.why}' if one.why else ''}")
    failed, applied = sum(one.held is False for one in found), sum(one.held is not None for one in found)
    print(f"{applied - failed} of {applied} checks hold{', and the others do not apply' if applied < len(found) else ''}")
    return 1 if failed else 0


def _contract(policy: Any, given: dict[str, Any]) -> tuple[str, Any]:
    """What a policy is, and the checks for it.

    Raises:
        ValueError: it is none of what there are checks for, or has other options.
    """
    if isinstance(policy, type) and issubclass(policy, JointAutoscaler):
        pools = {} if "pools" in policy.model_fields or "pools" not in given else {"pools": tuple(given.pop("pools"))}
        return "an autoscaler of several pools", _made(AutoscalerContract, scaler=policy(**given), **pools)
    if isinstance(policy, type) and issubclass(policy, Deciding):
        return "an autoscaler", _made(AutoscalerContract, scaler=policy(**given))
    if isinstance(policy, type) and issubclass(policy, Forecaster):
        return "a forecaster", _made(AutoscalerContract, scaler=Forecast(forecaster=policy(**given)))
    if isinstance(policy, type) and issubclass(policy, Traffic):
        return "traffic", _made(TrafficContract, traffic=policy(**given))
    kind: routers.RouterKind = ROUTER.check(policy)
    declares = {"sees loads": kind.sees_load, "balances": kind.balances, "draws at every request": kind.draws_always}
    said = ", ".join(what for what, is_so in declares.items() if is_so) or "declares nothing"
    return f"a router that {said}", _made(RouterContract, router=kind, options=kind.options(**given))


def _made(contract: type, **attributes: Any) -> Any:
    made = contract()
    vars(made).update(attributes)
    return made


if __name__ == "__main__":
    sys.exit(main())
