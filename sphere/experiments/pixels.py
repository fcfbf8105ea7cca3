"""MetaWorld from pixels under CRL: a ResNet policy with a mixture, with and without SPHERE."""

from sphere.experiments.arms import Arm
from sphere.experiments.beside_paper import success_table
from sphere.experiments.experiment import Experiment, Found, Results

TITLE = "MetaWorld from pixels, IMPALA ResNet and Top-K mixture, CRL"
SOURCE = "tab:visual-metaworld-resnet"
ARMS = (
    Arm("ResNet policy", preset="metaworld-pixels-crl"),
    Arm("ResNet policy + SPHERE", "sphere", preset="metaworld-pixels-crl"),
)


def table(found: Found) -> Results:
    return Results([success_table(found, "success", TITLE, SOURCE, [arm.label for arm in ARMS])])


EXPERIMENTS = {"pixels": Experiment(TITLE, SOURCE, ARMS, table)}
