"""Experiments: settings at every scale, fleets, what exists, and tables, figures and page from runs, made-up and real."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import fleets
import jax
import jax.numpy as jnp
import pytest
from fleets import TINY
from made_runs import write_run

import sphere.experiments.experiment as study
from sphere import ntk
from sphere.cli.main import main
from sphere.experiments import NAMES, find, kronecker
from sphere.experiments.cells import SCALES, SIZES, at_scale, cell, identity, identity_of, settings
from sphere.experiments.experiment import Experiment, Found
from sphere.experiments.method_tables import PAIR
from sphere.experiments.output import write_results
from sphere.experiments.tables import last_value, value_at
from sphere.launch.schedule import Job, existing, group, same_run, schedule, singles, work
from sphere.nets import NetConfig, build, parameter_count
from sphere.presets import PRESETS
from sphere.report import paper
from sphere.report.tables import Measured
from sphere.spectrum import effective_rank_spsd, khatri_rao, kronecker_effective_rank
from sphere.storage.run_directory import plain
from sphere.training.settings import FleetConfig, with_run

ASKED_FOR = """activation dense-backbones design-ablations expert-choice expert-count feature-rank gate-expert kfac kronecker
humanoidbench-archs humanoidbench-bars humanoidbench-crl humanoidbench-rl layernorm lead-lag load-balance metaworld-archs
metaworld-bars metaworld-crl metaworld-ntk metaworld-rl ntk-heldout ntk-online placement plasticity-diagnostics retention
rho-sweep runtime sign-flip specialisation spectral-baselines sphere-ablation structures ten-seeds tsne""".split()
NETWORKS = ("feature-rank", "gate-expert", "kfac", "kronecker", "tsne")
"""These look at checkpoints, not only at records."""

# Settings


def test_there_is_an_experiment_for_everything():
    assert set(ASKED_FOR) <= set(NAMES)


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_has_valid_settings(scale):
    """FleetConfig, PPOConfig and the methods refuse what cannot be; labels are once per suite, protocol and task list."""
    for name in NAMES:
        cells = find(name).runs(scale)
        labels = [(c.label, c.config.protocol, c.config.tasks) for c in cells]
        assert len(set(labels)) == len(labels), name
        assert len({identity_of(c.config) for c in cells}) == len(cells), name
        for one in cells:
            assert len(one.config.rho) == 1
            jax.eval_shape(lambda key, c=one.config: build(c.ppo.actor, 51, 19, key=key), jax.random.key(0))


def test_sources_are_labels_of_the_paper():
    known = {*paper.TABLES, *paper.SOURCES.values()}
    for name in NAMES:
        for label in re.findall(r"tab:[\w-]+", find(name).source):
            assert label in known, name


def test_rows_of_tables_are_those_of_the_paper():
    """Labels that a table looks up in the paper's are spelled as there; else its number would be missing silently."""
    for name in ("sphere-ablation", "design-ablations", "placement", "expert-choice", "spectral-baselines"):
        source = find(name).source
        assert {c.label for c in find(name).cells()} == set(paper.TABLES[source]), name
    for suite, protocol in paper.SUCCESS:
        labels = {c.label for c in find(f"{suite}-{protocol}").cells()}
        assert labels == set(paper.SUCCESS[suite, protocol])


def test_the_papers_scale_is_the_preset():
    by_label = {c.label: c.config for c in find("metaworld-crl").runs("paper")}
    preset = PRESETS["metaworld-crl"]
    assert by_label["SPHERE"] == dataclasses.replace(preset, seeds=(0, 1, 2, 3, 4))
    bare = dataclasses.replace(preset.ppo, penalty=None)
    assert by_label["Top-K MoE"] == dataclasses.replace(preset, seeds=(0, 1, 2, 3, 4), rho=(0.0,), ppo=bare)
    assert by_label["CBP"].ppo.mitigations.cbp is not None
    assert len(find("ten-seeds").runs("paper")[0].config.seeds) == 10
    rates = {c.label: c.config.rho[0] for c in find("sign-flip").runs("paper")}
    assert list(rates.values()) == [0.0, 1e-3, -1e-3]
    assert find("metaworld-crl").runs("paper", (7, 9))[0].config.seeds == (7, 9)


def test_under_rl_every_task_is_a_fleet_of_its_own_but_for_smoke(tmp_path):
    """Then a cluster, or a machine that trains several fleets at once, need not wait for one task to begin the next."""
    pair = find("metaworld-rl").only(PAIR)
    jobs = pair.schedule("paper", None, tmp_path).jobs
    assert [job.config.tasks for job in jobs] == [(task,) for task in PRESETS["metaworld-rl"].tasks]
    assert {(job.config.seeds, job.config.rho) for job in jobs} == {((0, 1, 2, 3, 4), (0.0, 0.1))}
    assert all(job.directory.name.startswith(f"metaworld-rl-{job.config.tasks[0][10:]}-top-k-") for job in jobs)
    (smoke,) = pair.schedule("smoke", None, tmp_path).jobs
    assert len(smoke.config.tasks) == 2
    assert len(find("metaworld-crl").only(PAIR).schedule("paper", None, tmp_path).jobs) == 1


def test_some_methods_of_an_experiment():
    labels = [(c.label, c.config.protocol) for c in find("metaworld-bars").only(["SPHERE", "LN"]).runs("smoke")]
    assert labels == [("LN", "rl"), ("SPHERE", "rl"), ("LN", "crl"), ("SPHERE", "crl")]


def test_ten_times_the_parameters():
    for suite, sizes in SIZES.items():
        nets = [settings(f"{suite}-crl", "none", actor).ppo.actor for actor in ("ppo", "ppo-10x")]
        counts = [parameter_count(build(net, *sizes, key=jax.random.key(0))) for net in nets]
        assert 10 <= counts[1] / counts[0] < 10.2


def test_the_sizes_of_a_suite_are_those_of_its_simulator():
    from sphere import envs

    with envs.make("metaworld/hammer", num_envs=1, seed=0, workers=0) as pool:
        spaces = pool.single_observation_space, pool.single_action_space
    assert tuple(space.shape[0] for space in spaces) == SIZES["metaworld"]


def test_identity_leaves_out_what_makes_no_difference():
    config = dataclasses.replace(TINY, seeds=(0,), rho=(0.1,))
    same = dataclasses.replace(config, workers=3, overlap=True, sharing=2, checkpoint_every=7, seeds=(5,))
    assert identity_of(config) == identity_of(same)
    other = dataclasses.replace(config, steps_per_task=641)
    assert identity_of(config) != identity_of(other)
    penalty = dataclasses.replace(config.ppo, penalty=dataclasses.replace(config.ppo.penalty, variant="gate"))
    assert identity_of(config) != identity_of(dataclasses.replace(config, ppo=penalty))
    none = [dataclasses.replace(config, rho=(0.0,), ppo=ppo) for ppo in (config.ppo, penalty)]
    assert identity_of(none[0]) == identity_of(none[1])  # without rho there is no penalty
    assert identity(json.loads(json.dumps(plain(dataclasses.asdict(config))))) == identity_of(config)


# Fleets


def test_seeds_and_rho_of_one_program_are_one_fleet():
    cells = [cell(f"rho={rho}", "humanoidbench-crl", "sphere", rho=rho) for rho in (0.0, 1e-3, -1e-3)]
    cells.append(cell("baseline", "metaworld-crl"))
    cells.append(cell("wide", "humanoidbench-crl", "sphere", net={"experts": 16}))
    runs = [one for c in cells for one in singles(at_scale(c.config, "paper", (0, 1, 2)))]
    found = group(runs)
    assert [(one.seeds, one.rho) for one in found] == [
        ((0, 1, 2), (0.0, 1e-3, -1e-3)),
        ((0, 1, 2), (0.0,)),
        ((0, 1, 2), (1e-3,)),
    ]
    assert {same_run(one) for config in found for one in singles(config)} == {same_run(one) for one in runs}


def test_a_baseline_joins_a_penalty_only_where_its_numbers_stay_the_same():
    """Variants that look at all experts compute densely: another order of sums."""
    plain_run = cell("w/o", "humanoidbench-crl")
    dense = cell("G", "humanoidbench-crl", "sphere", penalty={"variant": "gradient"})
    last = cell("w/", "humanoidbench-crl", "sphere")
    alone = group([one for c in (plain_run, dense) for one in singles(c.config)])
    assert [config.rho for config in alone] == [(0.0,), (1e-3,)]
    joined = group([one for c in (plain_run, dense, last) for one in singles(c.config)])
    assert sorted(config.rho for config in joined) == [(0.0, 1e-3), (1e-3,)]


def test_large_fleets_are_split_and_uneven_seeds_kept_apart():
    many = [with_run(TINY, seed, rho) for rho in (0.1, 0.2, 0.3, 0.4, 0.5) for seed in range(8)]
    assert [len(config.runs) for config in group(many)] == [16, 16, 8]
    seeds = [with_run(TINY, seed, 0.1) for seed in range(45)]
    assert [len(config.runs) for config in group(seeds)] == [20, 20, 5]
    uneven = [with_run(TINY, 0, 0.1), with_run(TINY, 1, 0.1), with_run(TINY, 0, 0.2)]
    assert [(config.seeds, config.rho) for config in group(uneven)] == [((0, 1), (0.1,)), ((0,), (0.2,))]


SHORT = dataclasses.replace(TINY, steps_per_task=256, seeds=(0, 1), rho=(0.1,), workers=0)


def test_what_exists_is_not_trained_again_and_what_is_half_done_goes_on(tmp_path):
    root = tmp_path / "fleets"
    first = schedule([SHORT], root)
    (job,) = first.open
    assert job.state == "to do"
    fleets.write(job.config, job.directory)
    fleets.cut_after(4, job.config, job.directory)  # one after the first checkpoint
    again = schedule([SHORT], root)
    assert [one.directory for one in again.open] == [job.directory]
    assert again.open[0].state == "half-done (25%)"
    work(again.open[0], quiet=True)
    assert schedule([SHORT], root).open == []
    before = {path: path.stat().st_mtime_ns for path in job.directory.rglob("*.jsonl")}
    work(schedule([SHORT], root).jobs[0], quiet=True)  # finished: nothing happens
    assert {path: path.stat().st_mtime_ns for path in job.directory.rglob("*.jsonl")} == before

    more = schedule([dataclasses.replace(SHORT, seeds=(0, 1, 2), rho=(0.1,))], root)  # one seed is missing
    assert [one.config.seeds for one in more.open] == [(2,)]
    assert [one.config.seeds for one in more.jobs] == [(0, 1), (2,)]
    assert len(more.runs) == 3
    timed = schedule([dataclasses.replace(SHORT, seeds=(0,))], root, together=False)  # was not trained by itself
    assert [one.config.seeds for one in timed.open] == [(0,)]

    straight = Job(SHORT, tmp_path / "straight")
    work(straight, quiet=True)
    assert fleets.numbers(straight.directory) == fleets.numbers(job.directory)


def test_a_fleet_that_was_killed_while_it_made_its_directories_begins_again(tmp_path):
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


# Tables and figures from made-up runs


def made_scale(config: FleetConfig, scale: str, seeds: tuple[int, ...]) -> FleetConfig:
    """Three evaluations of 1,000 steps in each of two tasks: what `made_runs` writes."""
    ppo = dataclasses.replace(config.ppo, num_envs=10, rollout_steps=100, batch_size=100)
    short = dataclasses.replace(config.evaluation, episodes=4)
    return dataclasses.replace(
        config, tasks=config.tasks[:2], steps_per_task=3000, seeds=seeds, ppo=ppo, evaluation=short
    )


@pytest.fixture
def made(tmp_path, monkeypatch):
    """An experiment by name, with all its runs made up."""
    monkeypatch.setattr(study, "at_scale", made_scale)

    def make(name: str, seeds=(0, 1), cells: int | None = None, stop_at: int | None = None) -> Found:
        """`cells`: only so many of them; `stop_at`: runs that are not finished."""
        experiment = find(name)
        schedule = experiment.schedule("paper", seeds, tmp_path / name)
        places = schedule.runs
        for job in schedule.jobs:
            job.directory.mkdir(parents=True, exist_ok=True)
            (job.directory / "fleet.json").write_text(json.dumps(plain(dataclasses.asdict(job.config))))
        for one in experiment.runs("paper", seeds)[:cells]:
            for single in singles(one.config):
                config = plain(dataclasses.asdict(single))
                config["ppo"]["actor"]["experts"] = min(config["ppo"]["actor"]["experts"], 16)
                path = write_run(places[same_run(single)], config, stop_at=stop_at)
                (path / "config.json").write_text(json.dumps(plain(dataclasses.asdict(single))))
        return experiment.found("paper", seeds, tmp_path / name)

    return make


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NETWORKS])
def test_results_follow_from_records(name, made):
    """Success at the end of every task is 3/4 in all made-up runs: every average must say so."""
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    found = made(name)
    assert not [note for note in found.loaded.notes if "skipped" in note]
    results = find(name).results(found)
    assert results.tables
    assert all(figure is not None for figure in results.figures.values())
    for table in results.tables:
        assert table.rows
        assert table.text()
        columns = [i for i, column in enumerate(table.columns) if column in ("success", "mean")]
        for row in table.rows:
            for i in columns:
                assert isinstance(row[i], Measured)
                assert row[i].mean == pytest.approx(0.75), (name, row)
    pyplot.close("all")


def test_results_of_what_has_hardly_begun(made):
    """One cell of each experiment, in its first task: what is not there yet is a dash, not an error."""
    importlib.import_module("matplotlib").use("agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    for name in NAMES:
        if name not in NETWORKS:
            found = made(name, (0,), cells=1, stop_at=1000)
            for table in find(name).results(found).tables:
                assert table.text()
            pyplot.close("all")


def test_the_papers_numbers_stand_beside_ours(made):
    (table, *_) = find("activation").results(made("activation")).tables
    assert table.columns == ("", "Top-K MoE", "paper, Top-K MoE", "SPHERE", "paper, SPHERE")
    assert table.rows[1] == [
        "Tanh",
        Measured(0.75, 0.0),
        Measured(0.36, 0.10),
        Measured(0.75, 0.0),
        Measured(0.58, 0.17),
    ]
    (table, *_) = find("retention").results(made("retention")).tables
    # the final policy: 3/4 on the last of two tasks, 1/4 on the first
    assert table.rows[1] == ["SPHERE", Measured(0.5, 0.0), Measured(0.25, 0.05)]
    (table, *_) = find("ten-seeds").results(made("ten-seeds")).tables
    assert table.rows[0][0] == "HumanoidBench CRL, Top-K MoE"
    assert table.rows[0][3:5] == [Measured(0.75), Measured(0.36)]


def test_the_end_of_training_is_that_of_finished_runs(made):
    """A run that has just begun says nothing about the end; one run has no deviation."""
    runs = made("load-balance", (0,), stop_at=3000).runs("Top-K MoE")
    assert value_at(runs, "heldout/ntk_rank", 0) is not None
    assert last_value(runs, "heldout/ntk_rank") is None
    runs = made("placement", (0,)).runs("Actor only")
    assert "±" not in last_value(runs, "heldout/ntk_rank").text()


def test_runs_of_a_version_with_fewer_settings_are_found(made, tmp_path):
    made("sign-flip", (0,))
    for path in (tmp_path / "sign-flip").rglob("*.json"):
        config = json.loads(path.read_text())
        if "boundary" in config:
            del config["boundary"]["mitigation"], config["ppo"]["deterministic"]
            path.write_text(json.dumps(config))
    found = find("sign-flip").found("paper", (0,), tmp_path / "sign-flip")
    assert {run.method for run in found.loaded.runs} == {c.label for c in find("sign-flip").cells()}


def test_hours_are_read_from_the_clock_of_the_records(made):
    """A made-up run writes a line every 1,000 steps, with as many seconds: one task of 3,000 steps takes 3,000 s."""
    (table,) = find("runtime").results(made("runtime", (0,))).tables
    assert table.columns[1:3] == ("E=10", "paper, E=10")
    assert table.rows[0][1].mean == pytest.approx(3000 / 3600)


def test_runs_that_are_missing_are_named(made, tmp_path):
    found = made("sign-flip", (0,))
    missing = find("sign-flip").found("paper", (0, 1), tmp_path / "sign-flip")
    assert "not begun yet: Top-K MoE, rho=0, seed 1; SPHERE, rho=1e-3, seed 1" in missing.loaded.notes[0]
    assert len(missing.loaded.runs) == len(found.loaded.runs) == 3
    made("metaworld-rl", (0,), cells=3)
    (note, *_) = find("metaworld-rl").found("paper", (0,), tmp_path / "metaworld-rl").loaded.notes
    assert note.startswith("not begun yet: PPO(10x), push-wall, seed 0; Top-K MoE, hammer, seed 0")
    with pytest.raises(ValueError, match="none of the 2 runs has been begun"):
        find("expert-choice").found("paper", (0,), tmp_path)


def test_two_names_for_the_same_runs_are_refused():
    twice = Experiment("", "", lambda: [cell("one", "metaworld-crl"), cell("two", "metaworld-crl")], lambda found: None)
    with pytest.raises(ValueError, match="one and two are the same runs"):
        twice.runs("smoke")


# From networks


def test_the_khatri_rao_block_without_its_matrix(x64):
    """Against the block product of A and G, formed."""
    net = build(NetConfig(kind="top-k", width=4, depth=2, experts=3), 5, 2, key=jax.random.key(0))
    net = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), net)
    states = jax.random.normal(jax.random.key(1), (6, 5), jnp.float64)

    phi, psi = jax.jit(lambda net, x: ntk.kronecker_factors(net, x)[-2])(net, states)
    a, g = (rows.reshape(6, -1).T @ rows.reshape(6, -1) / 6 for rows in (phi, psi))
    proxy, block = jax.jit(kronecker.ranks)(net, states)
    assert proxy == pytest.approx(float(kronecker_effective_rank(a, g)), rel=1e-6)
    target = khatri_rao(a, g, [phi.shape[2]] * 3, [psi.shape[2]] * 3)
    assert block == pytest.approx(float(effective_rank_spsd(target)), rel=1e-6)


# The whole way, on the real simulator


def test_from_runs_to_page(tmp_path, monkeypatch, capsys):
    """`sphere experiment run metaworld-crl --scale smoke`, then report, with two of its eight methods and one seed."""
    words = ["--scale", "smoke", "--seeds", "0", "--out", str(tmp_path)]
    assert main(["experiment", "run", "metaworld-crl", *words, "--only", *PAIR]) == 0
    assert main(["experiment", "plan", "metaworld-crl", *words, "--only", *PAIR]) == 0
    said = capsys.readouterr().out
    assert "2 runs in 1 fleet, 2 finished; 0 environment steps left" in said
    records = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("metrics.jsonl")}
    assert len(records) == 2
    assert main(["experiment", "run", "metaworld-crl", *words, "--only", *PAIR]) == 0  # nothing left to do
    assert {path: path.stat().st_mtime_ns for path in records} == records
    assert main(["experiment", "report", "metaworld-crl", *words]) == 0
    check_report(tmp_path / "smoke" / "reports" / "metaworld-crl")
    check_networks(find("metaworld-crl").found("smoke", (0,), tmp_path), tmp_path / "networks")


def check_report(report: Path) -> None:
    for name in ("metaworld-crl-tasks", "metaworld-averages"):
        for form in ("txt", "md", "tex", "csv"):
            assert "smoke" in (report / "tables" / f"{name}.{form}").read_text() or form == "csv"
    text = (report / "tables" / "metaworld-crl-tasks.txt").read_text()
    assert re.search(r"hammer +0\.\d\d +0\.98 ± 0\.04", text)
    assert "SMOKE" in text
    for name in ("success-bars", "learning-curves"):
        for form in ("svg", "pdf", "png"):
            assert (report / "figures" / f"{name}.{form}").stat().st_size > 1000
    page = (report / "index.html").read_text()
    assert "<strong>SMOKE" in page
    assert page.count("data:image/svg+xml;base64,") == 2


def check_networks(found: Found, out: Path) -> None:
    """Experiments that look at checkpoints, on the same runs; to t-SNE they are the runs on the first two tasks."""
    tables = {}
    for name in NETWORKS:
        results = find(name).results(found)
        (tables[name],) = results.tables
        assert [row[0] for row in tables[name].rows] == list(PAIR)
        made_before = dataclasses.replace(find(name), results=lambda _, r=results: r)
        written = write_results(name, made_before, found, out / name)
        assert {path.suffix for path in written} == {".svg", ".pdf", ".png", ".txt", ".md", ".tex", ".csv", ".html"}
    for name in ("feature-rank", "kronecker", "kfac"):
        assert all(-1 <= row[2].mean <= 1 for row in tables[name].rows)
    for row in tables["gate-expert"].rows:
        assert 0 <= row[1].mean <= 1
        assert row[2].mean <= row[3].mean  # the bound holds
    assert tables["tsne"].columns == ("", "start", "after push-wall")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "metaworld-clr"], "did you mean metaworld-"),
        (["paln", "metaworld-crl"], "use list, plan, run or report"),
        (["report", "metaworld-crl", "--out", "nowhere"], "has been begun; first: sphere experiment run"),
        (["run", "metaworld-crl", "--only", "SPHER"], "no method of this experiment 'SPHER'; did you mean SPHERE?"),
        (["run", "metaworld-crl", "--at-once", "0"], "at_once=0; want a number, at least 1"),
        (["run", "metaworld-crl", "--at-once", "2", "--launcher", "ray"], "--at-once is for this machine"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(words, sentence, capsys):
    assert main(["experiment", *words]) == 1
    assert sentence in capsys.readouterr().err


def test_list_names_every_experiment(capsys):
    assert main(["experiment", "list"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == NAMES
    page = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text()
    assert not [name for name in NAMES if f"`{name}`" not in page]
