"""Fleets of experiments: how runs are grouped, which exist already, and how unfinished ones are resumed."""

import fleets
import pytest
from fleets import TINY, changed

from sphere.experiments.arms import Arm
from sphere.experiments.configs import at_scale, config_of, same_run, shares_program, singles
from sphere.experiments.schedule import existing, group, schedule
from sphere.launch.jobs import Job, work


def test_seeds_and_rho_of_one_program_are_one_fleet():
    arms = [Arm(f"rho={rho}", "sphere", rho=rho) for rho in (0.0, 1e-3, -1e-3)]
    arms.append(Arm("baseline", preset="metaworld-crl"))
    arms.append(Arm("wide", "sphere", net={"experts": 16}))
    runs = [one for arm in arms for one in singles(at_scale(config_of(arm), "paper", (0, 1, 2))).values()]
    found = group(runs)
    assert [(one.seeds, one.rho) for one in found] == [
        ((0, 1, 2), (0.0, 1e-3, -1e-3)),
        ((0, 1, 2), (0.0,)),
        ((0, 1, 2), (1e-3,)),
    ]
    assert {same_run(one) for config in found for one in singles(config).values()} == {same_run(one) for one in runs}


def test_a_baseline_joins_a_penalty_only_where_its_numbers_stay_the_same():
    """Variants that look at all experts compute densely: another order of sums."""
    baseline = config_of(Arm("w/o"))
    dense = config_of(Arm("G", "sphere", penalty={"variant": "gradient"}))
    last = config_of(Arm("w/", "sphere"))
    assert [config.rho for config in group([baseline, dense])] == [(0.0,), (1e-3,)]
    assert sorted(config.rho for config in group([baseline, dense, last])) == [(0.0, 1e-3), (1e-3,)]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (Arm("", "sphere", rho=0.1), Arm("", "sphere", rho=0.2), True),
        (Arm("", "sphere"), Arm(""), True),
        (Arm("", "sphere"), Arm("", "sphere", penalty={"placement": "critic"}), False),
        (Arm("", "sphere", penalty={"placement": "critic"}), Arm(""), True),
        (Arm("", "sphere", penalty={"variant": "kronecker"}), Arm(""), False),
        (Arm("", "sphere", penalty={"variant": "kronecker"}, rho=0.0), Arm(""), True),
        (Arm("", "sphere"), Arm("", "sphere+layernorm"), False),
        (Arm("", "cbp"), Arm(""), False),
        (Arm("", actor="ppo"), Arm(""), False),
        (Arm(""), Arm("", tasks=1), False),
        (Arm(""), Arm("", preset="humanoidbench-rl"), False),
    ],
)
def test_runs_share_a_program_if_they_differ_in_rho_alone(first, second, shared):
    configs = config_of(first), changed(config_of(second), seeds=(3,))
    assert shares_program(*configs) == shared
    assert shares_program(*reversed(configs)) == shared


def single(seed, rho):
    return changed(TINY, seeds=(seed,), rho=(rho,))


def test_large_fleets_are_split_and_uneven_seeds_kept_apart():
    many = [single(seed, rho) for rho in (0.1, 0.2, 0.3, 0.4, 0.5) for seed in range(8)]
    assert [len(config.runs) for config in group(many)] == [16, 16, 8]
    seeds = [single(seed, 0.1) for seed in range(45)]
    assert [len(config.runs) for config in group(seeds)] == [20, 20, 5]
    uneven = [single(0, 0.1), single(1, 0.1), single(0, 0.2)]
    assert [(config.seeds, config.rho) for config in group(uneven)] == [((0, 1), (0.1,)), ((0,), (0.2,))]


SHORT = changed(TINY, steps_per_task=256, seeds=(0, 1), rho=(0.1,), workers=0)


def test_finished_fleets_are_kept_and_unfinished_ones_resumed(tmp_path):
    root = tmp_path / "fleets"
    first = schedule([SHORT], root)
    (job,) = first.open
    assert job.state == "not started"
    fleets.write(job.config, job.directory)
    fleets.cut_after(4, job.config, job.directory)  # one after the first checkpoint
    again = schedule([SHORT], root)
    assert [one.directory for one in again.open] == [job.directory]
    assert again.open[0].state == "unfinished (25%)"
    work(again.open[0], quiet=True)
    assert schedule([SHORT], root).open == []
    before = {path: path.stat().st_mtime_ns for path in job.directory.rglob("*.jsonl")}
    work(schedule([SHORT], root).jobs[0], quiet=True)  # finished: nothing happens
    assert {path: path.stat().st_mtime_ns for path in job.directory.rglob("*.jsonl")} == before

    more = schedule([changed(SHORT, seeds=(0, 1, 2), rho=(0.1,))], root)  # one seed is missing
    assert [one.config.seeds for one in more.open] == [(2,)]
    assert [one.config.seeds for one in more.jobs] == [(0, 1), (2,)]
    assert len(more.runs) == 3
    timed = schedule([changed(SHORT, seeds=(0,))], root, together=False)  # was not trained by itself
    assert [one.config.seeds for one in timed.open] == [(0,)]

    straight = Job(SHORT, tmp_path / "straight")
    work(straight, quiet=True)
    assert fleets.numbers(straight.directory) == fleets.numbers(job.directory)


def test_a_fleet_that_was_killed_while_it_made_its_directories_starts_again(tmp_path):
    (job,) = schedule([SHORT], tmp_path).jobs
    fleets.write(job.config, job.directory)
    (job.directory / "rho0.1-seed1" / "config.json").unlink()
    work(job, quiet=True)
    assert job.finished


def test_foreign_directories_are_no_fleets(tmp_path):
    for name, text in {
        "broken": "{",
        "foreign": "[1]",
        "newer": '{"tasks": ["probe/reach-north"], "colour": 1}',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "fleet.json").write_text(text)
    assert existing(tmp_path) == []
    assert len(schedule([SHORT], tmp_path).open) == 1
