"""``kubectl moe plan``: does this model fit these GPUs, and how, before any pod exists.

From a MoEDeployment (``-f``) or from files and numbers. Exit status: 0 it fits, 2 it is refused, 1 the
question cannot be answered; then standard error says why in one line.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from moe_operator.checkpoint.unreadable import UnreadableConfig
from moe_operator.cli.cluster_view import Kubectl, NoCluster
from moe_operator.cli.model_files import NoFacts
from moe_operator.cli.plan_question import Question, from_flags, from_object
from moe_operator.cli.plan_report import Report, as_document, as_text
from moe_operator.engines.known import ENGINES, args_refusal
from moe_operator.planning.answers import answers
from moe_operator.planning.assumed import DEFAULTS, NAMES, Assumed
from moe_operator.planning.plan import Plan
from moe_operator.planning.planner import plan as plan_layouts

REFUSED = 2
ENGINE = click.Choice(list(ENGINES), case_sensitive=False)
FORM = click.Choice(["text", "json", "yaml"])
FILE = click.Path(path_type=Path, exists=True)


class PlanCommand(click.Command):
    """Wrong options are errors like all others: one line, exit status 1 (2 means refused)."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As click does, with its usage errors made plain."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise click.ClickException(error.format_message()) from None


class Override(click.ParamType[tuple[str, float]]):
    """``NAME=VALUE`` of an assumed constant."""

    name = "NAME=VALUE"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Name and number; fails for a name that is not assumed."""
        name, _, number = value.partition("=")
        try:
            amount = float(number)
        except ValueError:
            self.fail(f"{value!r} is not NAME=VALUE with a number", param, ctx)
        if name not in NAMES or not 0 <= amount < float("inf"):
            self.fail(f"{value!r}: the names are {', '.join(NAMES)}", param, ctx)
        return name, amount


@dataclass(frozen=True, slots=True)
class Output:
    """How the answer is shown."""

    form: str
    ascii_only: bool
    read_gb_per_second: float


@click.command(cls=PlanCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-f", "--filename", type=FILE, metavar="FILE", help="A MoEDeployment, YAML or JSON.")
@click.option("--config", type=FILE, metavar="PATH", help="config.json, or a checkpoint's directory.")
@click.option("--index", type=FILE, metavar="PATH", help="model.safetensors.index.json.")
@click.option("--weights-bytes", type=click.IntRange(1), metavar="N", help="Size of all weights.")
@click.option("--read-source", is_flag=True, help="Read the model's source over the network.")
@click.option("--engine", type=ENGINE, default="vLLM", show_default=True)
@click.option("--gpu", metavar="PRODUCT", help="As label nvidia.com/gpu.product, such as NVIDIA-H20.")
@click.option("--gpu-memory", type=click.IntRange(1024), metavar="MIB", help="Memory of one GPU.")
@click.option("--nodes", type=click.IntRange(1, 512), metavar="N", help="Default: the fewest that fit.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), metavar="N")
@click.option("--tensor", type=click.IntRange(1), metavar="N", help="Pin tensor parallelism, as vLLM counts.")
@click.option("--pipeline", type=click.IntRange(1), metavar="N", help="Pin pipeline parallelism.")
@click.option("--data", type=click.IntRange(1), metavar="N", help="Pin data parallelism.")
@click.option("--expert/--no-expert", default=None, help="Pin expert parallelism.")
@click.option("--decode-context", type=click.IntRange(1), metavar="N", help="Pin decode-context parallelism.")
@click.option("--max-model-len", type=click.IntRange(1), metavar="TOKENS", help="Default: what fits.")
@click.option("--max-num-seqs", type=click.IntRange(1), metavar="N")
@click.option("--max-num-batched-tokens", type=click.IntRange(1), metavar="N")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Requests of that length that must fit at the same time.",
)
@click.option("--kv-cache-dtype", type=click.Choice(["Auto", "BF16", "FP8"], case_sensitive=False))
@click.option("--memory-utilization", type=click.FloatRange(0.1, 0.99), metavar="SHARE")
@click.option("--assume", multiple=True, type=Override(), help="Override an assumed constant; repeatable.")
@click.option("--policy", type=FILE, metavar="FILE", help="The operator's configuration, for its presets.")
@click.option("--against-cluster", is_flag=True, help="Count the GPUs of the current cluster with kubectl.")
@click.option("--context", "kube_context", metavar="NAME", help="kubectl's context.")
@click.option("-n", "--namespace", metavar="NS", help="Namespace of the deployment.")
@click.option(
    "--read-gb-per-second",
    type=click.FloatRange(0.001),
    default=2.0,
    show_default=True,
    help="Read bandwidth of a node's weights, for the load time.",
)
@click.option("-o", "--output", "form", type=FORM, default="text", show_default=True)
@click.option("--ascii", "ascii_only", is_flag=True, help="Plain ASCII text.")
@click.pass_context
def plan(
    ctx: click.Context, /, form: str, ascii_only: bool, read_gb_per_second: float, **options: Any
) -> None:
    """Say whether a model fits GPUs, and how, before any pod exists.

    Give a MoEDeployment with -f, or a model with --config and the hardware with --gpu and --nodes.
    Exit status: 0 it fits, 2 it is refused, 1 the question cannot be answered.
    """
    try:
        question = _question(options)
    except (NoFacts, NoCluster, UnreadableConfig) as error:
        raise click.ClickException(" ".join(str(error).split())) from None
    output = Output(form, ascii_only, read_gb_per_second)
    answer = answered(question)
    click.echo(rendered(question, answer, output), nl=False)
    if answer.verdict == "Refused":
        ctx.exit(REFUSED)


def answered(question: Question) -> Plan:
    """The plan, with what the user's own engine arguments contradict."""
    answer = plan_layouts(question.request, ENGINES[question.request.engine].judges)
    conflict = args_refusal(question.spec, answer.layout) if question.spec and answer.layout else None
    if conflict is None:
        return answer
    return replace(answer, verdict="Refused", refusals=(*answer.refusals, conflict))


def rendered(question: Question, answer: Plan, output: Output) -> str:
    """The answer in the asked form."""
    judges = ENGINES[question.request.engine].judges
    further = answers(
        question.request,
        answer,
        judges,
        replicas=question.replicas,
        retained=question.retained,
        read_bytes_per_second=output.read_gb_per_second * 1e9,
    )
    report = Report(
        question.request,
        answer,
        further,
        question.facts,
        question.product,
        question.version,
        question.cluster,
    )
    if output.form == "text":
        return as_text(report, output.ascii_only)
    document = as_document(report)
    if output.form == "yaml":
        return yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False, allow_unicode=True)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _question(options: dict[str, Any]) -> Question:
    kubectl = Kubectl(("--context", options["kube_context"]) if options["kube_context"] else ())
    assumed = _assumed(options["assume"])
    if options["filename"]:
        question = from_object(options, kubectl)
    elif options["config"]:
        question = from_flags(options, kubectl)
    else:
        raise NoFacts("give a MoEDeployment with -f, or --config with --gpu")
    return replace(question, request=replace(question.request, assumed=assumed))


def _assumed(overrides: tuple[tuple[str, float], ...]) -> Assumed:
    return replace(DEFAULTS, **{name: type(getattr(DEFAULTS, name))(value) for name, value in overrides})
