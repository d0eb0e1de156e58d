import pytest
from peft import LoraConfig

from anchorfold.errors import AnchorFoldError
from training.colqwen25.recipe import read_recipe
from training.colqwen25.run import require_same_recipe, training_arguments


def test_the_default_is_appendix_a(tmp_path):
    recipe = read_recipe()
    assert (recipe.model.base, recipe.model.bidirectional) == ("vidore/colqwen2.5-base", True)
    assert (recipe.model.visual_tokens, recipe.model.attention) == (768, "flash_attention_2")
    assert (recipe.data.train, recipe.agc.tokens) == ("vidore/colpali_train_set", 0)
    args = training_arguments(tmp_path, {**recipe.training, "use_cpu": True})
    assert (args.num_train_epochs, args.per_device_train_batch_size, args.warmup_steps) == (3, 32, 500)
    assert (args.learning_rate, args.bf16, args.gradient_checkpointing) == (1e-4, True, True)
    lora = LoraConfig(**recipe.lora)
    assert (lora.r, lora.lora_alpha, lora.lora_dropout, lora.bias) == (32, 32, 0.1, "none")


def test_agc_is_the_same_with_128_tokens():
    paper, agc = read_recipe(), read_recipe("agc")
    assert (agc.agc.tokens, agc.agc.cap) == (128, 128)
    assert (agc.model, agc.data, agc.loss, agc.lora) == (paper.model, paper.data, paper.loss, paper.lora)
    assert agc.training == paper.training


def test_a_file_overrides_only_its_keys(tmp_path):
    file = tmp_path / "ours.toml"
    file.write_text("[training]\nlearning_rate = 5e-5\n[data]\ntrain = './ours'\n")
    recipe = read_recipe(file, ["agc.cap=64", "loss.kind=cross-entropy"])
    assert (recipe.training["learning_rate"], recipe.training["warmup_steps"]) == (5e-5, 500)
    assert (recipe.data.train, recipe.agc.cap, recipe.loss.kind) == ("./ours", 64, "cross-entropy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("agc.token=3", "sets agc.token: there are tokens, cap"),
        ("agc.tokens=many", "agc.tokens is of type int, not 'many'"),
        ("model.bidirectional=1", "model.bidirectional is of type bool"),
        ("loss.kind=hinge", "loss.kind is one of pairwise, cross-entropy"),
        ("model.dtype=int8", "model.dtype is one of bfloat16, float32"),
        ("modle.base=x", "a recipe has the sections model, data"),
        ("learning_rate=1", "write SECTION.NAME=VALUE"),
    ],
)
def test_what_means_nothing_is_refused(change, message):
    with pytest.raises(AnchorFoldError, match=message):
        read_recipe("paper", [change])


def test_unknown_arguments_of_the_trainer_are_refused(tmp_path):
    with pytest.raises(AnchorFoldError, match="learnign_rate"):
        training_arguments(tmp_path, {"learnign_rate": 1, "use_cpu": True})
    with pytest.raises(AnchorFoldError, match="no recipe"):
        read_recipe("absent")


def test_a_run_goes_on_by_its_own_recipe_only(tmp_path):
    read_recipe().save(tmp_path / "recipe.json")
    require_same_recipe(tmp_path, read_recipe())
    with pytest.raises(AnchorFoldError, match=r"training\.seed differ"):
        require_same_recipe(tmp_path, read_recipe("paper", ["training.seed=7"]))
