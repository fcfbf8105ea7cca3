"""`sphere data record metaworld`: a data set of the package's scripted policies, for learning offline."""

from dataclasses import dataclass

import tyro

from sphere.errors import UserError, in_range, unknown

USAGE = "usage: sphere data record metaworld [options]; --help for more"


@dataclass(frozen=True)
class Record:
    """Record episodes of the scripted policies with noise, all tasks in one data set; prints the behaviour's own
    success."""

    name: str = "metaworld/scripted-v0"
    """Of the data set, as Minari wants it: namespace/name-v0. It goes where MINARI_DATASETS_PATH says."""
    tasks: tuple[str, ...] = ()
    """Default: Continual World's ten."""
    episodes: int = 200
    """Of each task."""
    noise: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5)
    """Deviations of the noise on actions, one for each episode in turn."""
    uniform: float = 0.1
    """Share of actions that are drawn evenly instead."""
    horizon: int | None = None
    """Steps of an episode; default: the suite's, 500."""
    seed: int = 0

    def __post_init__(self) -> None:
        in_range(self, {"episodes": (1, None), "uniform": (0, 1), "horizon": (1, None), "seed": (0, None)})
        if not self.noise or min(self.noise) < 0:
            raise UserError(f"noise is {self.noise}; want at least one deviation, each 0 or more")


def data(arguments: list[str]) -> None:
    if arguments[:2] != ["record", "metaworld"]:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(USAGE)
            return
        raise UserError(f"sphere data {' '.join(arguments[:2])}: there is only `sphere data record metaworld`")
    options = tyro.cli(Record, prog="sphere data record metaworld", args=arguments[2:])
    from sphere import envs
    from sphere.data.record import record, write
    from sphere.data.recorded import minari
    from sphere.presets import CW10

    minari()  # before hours of recording
    known = envs.tasks("metaworld")
    tasks = [task.removeprefix("metaworld/") for task in options.tasks] or list(CW10)
    for task in tasks:
        if task not in known:
            raise unknown("task", task, known)
    episodes, rows = [], []
    print(f"{'task':<20} {'episodes':>9} {'success once':>13} {'at the end':>11} {'return':>9}")
    for task in tasks:
        found, row = record(task, options.episodes, options.seed, options.noise, options.uniform, options.horizon)
        episodes += found
        rows.append(row)
        print(
            f"{task:<20} {row.episodes:>9} {row.success_once:>13.2f} {row.success_at_end:>11.2f} "
            f"{row.mean_return:>9.0f}",
            flush=True,
        )
    write(options.name, episodes, rows)
    steps = sum(len(one.rewards) for one in episodes)
    mean = sum(row.success_at_end for row in rows) / len(rows)
    print(f"\n{steps:,} transitions in {options.name}; the behaviour's success at the end of its episodes: {mean:.2f}")
