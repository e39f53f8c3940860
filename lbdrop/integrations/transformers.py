r"""Learned rates in the Hugging Face ``Trainer``: the same arguments, with the objective in place of the mean loss.

An example is a sequence, its loss $\ell_i$ the sum over its labelled tokens (one, where a sequence has one label). The trainer
minimises what ``Trainer`` does, the mean over tokens, with the bound's KL in the same unit:

$$ \frac{1}{T}\Big(\sum_{i=1}^{B} \mathbb{E}_z[\ell_i(z)] + \frac{B}{N}\,\mathrm{KL}\Big), $$

$T$ the labelled tokens of a step, $B$ its sequences and $N$ those of the training set. A rule with held-out data compares
means over tokens.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lbdrop.errors import DropoutError
from lbdrop.integrations.rates import (
    RATE_LR,
    Whole,
    check_rate_lr,
    converted,
    load_rates,
    objective_scalars,
    rate_parameters,
    rate_state,
    save_rates,
    say_start,
    warn_if_not_frozen,
    without_rates,
    write_rates,
)
from lbdrop.objective import Objective
from lbdrop.rules.rule import HeldOutRule, Rule, StatefulRule

try:
    from transformers import Trainer
    from transformers.integrations import TensorBoardCallback
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as missing:
    raise DropoutError("transformers is not installed; pip install 'lbdrop[transformers]'") from missing

Base = Trainer if TYPE_CHECKING else object

__all__ = ["LearnedRatesMixin", "LearnedRatesTrainer", "example_losses", "labelled"]

OBJECTIVE_FILE = "learned_rates_state.pt"
"""The state of the rule, in a checkpoint's folder."""
IGNORED = -100  # the label that counts for no loss, everywhere in transformers
SEQUENCE = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification", "ForAudioClassification")
TOKEN = ("ForTokenClassification", "ForMaskedLM", "ForCausalLM", "ForConditionalGeneration")


# ---------------------------------------------------------------------------------------------------- losses per example


def example_losses(model: nn.Module, inputs: Mapping[str, Any], label_smoothing: float = 0.0) -> Float[Tensor, "batch"]:
    """One loss per sequence from logits and ``labels``, summed over its labelled tokens; labels of -100 count for none.

    For classification of sequences, images and sounds (with ``problem_type`` as in the model's config) or of tokens, masked
    and causal language models, and encoder-decoders.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> bert = BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=3, **small))
        >>> batch = {"input_ids": torch.randint(0, 20, (4, 6)), "labels": torch.tensor([0, 2, 1, 1])}
        >>> example_losses(bert, batch).shape
        torch.Size([4])
    """
    task, core = _task(model)
    inputs = dict(inputs)
    labels = inputs.pop("labels", None)
    if labels is None:
        raise DropoutError(f"inputs: want labels to learn from, got {sorted(inputs)}; add a column named 'labels'")
    if hasattr(core, "prepare_decoder_input_ids_from_labels"):
        inputs.setdefault("decoder_input_ids", core.prepare_decoder_input_ids_from_labels(labels=labels))
    logits = model(**inputs).logits
    if task in SEQUENCE:
        return _sequence_losses(core.config, logits, labels, label_smoothing)
    if task == "ForCausalLM":
        logits, labels = logits[:, :-1], labels[:, 1:]
    losses = F.cross_entropy(
        logits.float().movedim(-1, 1), labels, ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing
    )
    return losses.flatten(1).sum(1)


def labelled(model: nn.Module, inputs: Mapping[str, Any]) -> int | Tensor:
    """How many labelled tokens a batch has; how many sequences, where each has one label."""
    task, labels = _task(model)[0], inputs["labels"]
    if task in SEQUENCE:
        return len(labels)
    return (labels[:, 1:] if task == "ForCausalLM" else labels).ne(IGNORED).sum()


def _sequence_losses(config: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    kind = config.problem_type
    if kind is None:  # as transformers decides it
        whole = labels.dtype in (torch.long, torch.int)
        kind = "regression" if config.num_labels == 1 else "single" if whole else "multi_label_classification"
    if kind == "regression":
        return (logits.reshape(len(labels), -1) - labels.reshape(len(labels), -1)).square().mean(1)
    if kind == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)


def _task(model: nn.Module) -> tuple[str, Any]:
    """What a model is for, read off its class as transformers does, and the model inside an adapter's wrapper."""
    core: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore
    task = getattr(core, "loss_type", None)
    decodes = task == "ForConditionalGeneration" and not core.config.is_encoder_decoder
    if decodes or type(core).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        task = "ForCausalLM"  # and shifts its labels, whatever its name: GPT2LMHeadModel
    if task not in (*SEQUENCE, *TOKEN):
        raise DropoutError(
            f"loss: want a model for one of {', '.join((*SEQUENCE, *TOKEN))}, got {type(core).__name__}; say how an example's"
            " loss is computed, as in compute_loss_func=lambda outputs, labels, num_items_in_batch: F.cross_entropy("
            "outputs.logits, labels, reduction='none')"
        )
    return task, core


# --------------------------------------------------------------------------------------------------------- the trainer


class LearnedRatesMixin(Base):
    """Learned rates for a ``Trainer`` or a subclass: ``class MyTrainer(LearnedRatesMixin, Seq2SeqTrainer): ...``.

    Args:
        rate_lr: learning rate of the rates, at the start of the trainer's schedule. Refused with ``held_out``, where the rule
            moves the rates.
        examples: the size of the training set; by default the length of ``train_dataset``. With ``held_out`` nothing is
            guessed: if given, held-out examples are trained on too, at their share, once rates are frozen; all batches must
            then be padded to one length.
        held_out: a dataset that weights are not trained on while rates follow it (:class:`lbdrop.Balanced`).
        rule: makes another rule, as in ``lambda model: lbdrop.Bound(model, examples=1000, weight=0.1)``.
        estimator: as for :class:`lbdrop.Objective`.

    A model without learned dropouts is converted with a rate per layer; for anything else call :func:`lbdrop.convert` on it
    first. A ``compute_loss_func`` has to return one loss per example. Evaluation and prediction run without masks, unless
    :func:`lbdrop.predict` draws them. What is saved is the model as it was before conversion, and the rates beside it
    (:func:`~lbdrop.integrations.rates.load_rates`).
    """

    def __init__(
        self,
        *args: Any,
        rate_lr: float = RATE_LR,
        examples: int | None = None,
        held_out: Any = None,
        rule: Callable[[nn.Module], Rule] | None = None,
        estimator: str | None = None,
        **kwargs: Any,
    ):
        self.rate_lr, self.examples, self.held_out, self.rule, self.estimator = (
            rate_lr, examples, held_out, rule, estimator,
        )  # fmt: skip
        self._objective: Objective | None = None
        self._steps: int | None = None
        super().__init__(*args, **kwargs)
        self.model: Any = converted(self.model)

    @property
    def objective(self) -> Objective:
        """Made when it is first asked for: a rule may add parameters, so before the optimiser."""
        if self._objective is None or self._objective.core is not self.model:
            if self.rule is not None:
                # All that was given, for the objective refuses what a rule of its own makes useless.
                self._objective = Objective(
                    self.model, self.rule(self.model), held_out=self.held_out, examples=self.examples,
                    estimator=self.estimator,
                )  # fmt: skip
            elif self.held_out is not None:
                if self._steps is None:  # asked for before training
                    self.set_initial_training_values(self.args, self.get_train_dataloader())
                loader = Whole(self.get_eval_dataloader(self.held_out))
                self._objective = Objective(
                    self.model, held_out=loader, steps=self._steps, examples=self.examples, estimator=self.estimator
                )
            else:
                self._objective = Objective(self.model, examples=self._count(), estimator=self.estimator)
            check_rate_lr(self.rate_lr, self._objective.rule)
            say_start(self._objective)
        return self._objective

    def set_initial_training_values(self, args: Any, dataloader: Any, *more: Any) -> Any:
        """What the trainer finds before training, overheard: a rule with held-out data is told how often it will be asked."""
        values = super().set_initial_training_values(args, dataloader, *more)
        epochs, *_, batches, steps = values
        called = steps * args.gradient_accumulation_steps
        # The last step of an epoch may accumulate fewer batches than the others.
        self._steps = min(called, epochs * batches) if batches else called
        return values

    def _count(self) -> int:
        if self.examples is None and not hasattr(self.train_dataset, "__len__"):
            raise DropoutError(
                f"examples: want the size of the training set, got {type(self.train_dataset).__name__} that does not tell;"
                " pass it, as in LearnedRatesTrainer(..., examples=50_000)"
            )
        return self.examples or len(self.train_dataset)  # pyright: ignore[reportArgumentType]

    def call_model_init(self, trial: Any = None) -> Any:
        return converted(super().call_model_init(trial))

    # ------------------------------------------------------------------------------------------------------- one step

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if return_outputs:
            raise DropoutError(
                "compute_loss: want the loss alone in training, got return_outputs=True; each mask has its own"
            )
        if model is not self.objective.model:
            self.objective.model = model  # wrapped meanwhile, for several processes
        loss = self.objective(self._losses, dict(inputs))
        if self.compute_loss_func is not None:
            self.loss_is_scaled_for_ga = False
            return loss
        # Over the tokens of all batches of an accumulated step, where Trainer has counted them.
        self.loss_is_scaled_for_ga = num_items_in_batch is not None
        items = labelled(self.model, inputs) if num_items_in_batch is None else num_items_in_batch
        return loss * self._unit(inputs) / items

    def _unit(self, inputs: Mapping[str, Any]) -> int | Tensor:
        """What the mean of a batch's losses is multiplied by to be their sum over tokens."""
        by_token = isinstance(self.objective.rule, HeldOutRule)
        return labelled(self.model, inputs) if by_token else len(inputs["labels"])

    def _losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        if self.compute_loss_func is None:
            losses = example_losses(model, inputs, self.args.label_smoothing_factor)
            # Means over tokens, for a rule that compares batches whose sequences may be longer or shorter.
            return losses * (len(losses) / torch.as_tensor(self._unit(inputs)).clamp(min=1))
        inputs = dict(inputs)
        labels = inputs.pop("labels", None)
        return self.compute_loss_func(model(**inputs), labels, num_items_in_batch=None)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train(*args, **kwargs)
        warn_if_not_frozen(self.objective)
        return result

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        _ = self.objective
        rates = rate_parameters(self.model)
        ours, given = {id(p) for p in rates}, self.optimizer is not None
        optimizer = super().create_optimizer(model)
        if given:
            held = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if not ours <= held:
                raise DropoutError(
                    "optimizers: want one that has the rates, got one without; convert the model first, and make it with"
                    " torch.optim.AdamW(lbdrop.parameter_groups(model, rate_lr=1e-2))"
                )
            return optimizer
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in ours]
        if rates:
            optimizer.add_param_group({"params": rates, "lr": self.rate_lr, "weight_decay": 0.0})
        return optimizer

    # -------------------------------------------------------------------------------------------------- looking, keeping

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        training = "loss" in logs
        super().log(logs | objective_scalars(self.objective) if training else logs, start_time)
        for callback in self.callback_handler.callbacks if training else ():
            if isinstance(callback, TensorBoardCallback) and callback.tb_writer is not None:
                write_rates(callback.tb_writer, self.model, self.state.global_step)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, without_rates(self.model) if state_dict is None else state_dict)
        if self.args.should_save:
            save_rates(self.model, output_dir or str(self.args.output_dir))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            torch.save(self.objective.state_dict(), Path(output_dir) / OBJECTIVE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint) / OBJECTIVE_FILE
        if path.exists():
            self.objective.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        elif isinstance(self.objective.rule, StatefulRule):
            warnings.warn(
                f"checkpoint: want {OBJECTIVE_FILE} in {checkpoint}, got none, as from an earlier version of lbdrop or a"
                " checkpoint without an optimiser; the rule begins anew",
                stacklevel=2,
            )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with _rates_come_apart():
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        load_rates(self.model, resume_from_checkpoint)

    def _load_best_model(self) -> None:
        with _rates_come_apart():
            super()._load_best_model()
        load_rates(self.model, str(self.state.best_model_checkpoint))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        learned = rate_state(self.model)
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in learned]
        super()._issue_warnings_after_load(load_result)


class LearnedRatesTrainer(LearnedRatesMixin, Trainer):
    """``transformers.Trainer`` with learned rates; see :class:`LearnedRatesMixin` for its arguments."""


@contextmanager
def _rates_come_apart() -> Iterator[None]:
    """An adapter's file does not have its rates: that is no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found missing adapter keys")
        yield
