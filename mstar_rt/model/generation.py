"""`GenerationSpec`: what a model that writes, speaks or draws declares, so that one service serves every generator.

A chat task takes `conversation`, uint8 [N]: see `model.conversation`. It emits, at each decode step,

    text               uint8 [B], UTF-8 of the characters that are complete now; B may be 0. A stop string, and what may
                       become one, is held back
    token              int64 [1], the token that was sampled

and at the end `reason`, int64 [], see `Reason`, and `num_input_tokens`, int64 []. A chat's image task takes `image`
besides, uint8 [H, W, 3] RGB, which is before all that is said. A speech task takes `text`, uint8 [N], UTF-8, and emits

    audio              float32 [S], -1 to 1, one chunk after the other, without gap or overlap

and at the end `reason`, and `num_input_tokens` and `num_output_tokens`, int64 [], where the model counts them. A task
that draws takes `conversation`, at most one turn of the system and then one of the user; one that edits takes `image`
besides; one that thinks first writes its plan as a chat task writes. They emit, after each denoise step,

    step               int64 [], how many are done, where the model tells
    preview            uint8 [H, W, 3] RGB, or nothing, see `preview_every`
    latents            float32 [T, D], or nothing, see `latents_every`

and at the end `image`, uint8 [H, W, 3] RGB, and `num_input_tokens`, int64 []. Options, each only where the model has a
use for it; none may be required, as a client leaves out what it does not mind:

    max_tokens, temperature (0: greedy), top_k (0: no limit), top_p, repetition_penalty (1: none), seed
    ignore_end         goes on to max_tokens, for measurements
    stop               where text is written: JSON, a list of strings that end it
    voice, speed       speech only; 1 is the normal speed
    height, width      images only, as all that follow: pixels
    num_denoise_steps, timestep_shift
    text_guidance, image_guidance, guidance_start, guidance_end, renormalization, renormalization_min
    preview_every, latents_every    after every so many steps there is one; 0: never

One request makes one image; a task that draws has the option `seed`, by which several images of one call differ. What
is too long is refused with InvalidArgument and the limit, never cut; so is a text without a word. A text or a
conversation of one zero byte is the warm-up's, as is an image of one black pixel, and is answered like any other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mstar_rt.model.served import ServedModel, TaskSpec

TOKEN_OPTIONS = {
    "max_tokens": "int", "temperature": "float", "top_k": "int", "top_p": "float", "repetition_penalty": "float",
    "ignore_end": "bool", "seed": "int",
}  # fmt: skip
CHAT_OPTIONS = {**TOKEN_OPTIONS, "stop": "str"}
SPEECH_OPTIONS = {**TOKEN_OPTIONS, "voice": "str", "speed": "float"}
IMAGE_OPTIONS = {
    **CHAT_OPTIONS, "height": "int", "width": "int", "num_denoise_steps": "int", "timestep_shift": "float",
    "text_guidance": "float", "image_guidance": "float", "guidance_start": "float", "guidance_end": "float",
    "renormalization": "str", "renormalization_min": "float", "preview_every": "int", "latents_every": "int",
}  # fmt: skip
"""What these options are called wherever a task has them, and of which kind they are."""


class Reason(enum.IntEnum):
    """Why a generation ended, with the numbers of the wire (GenerateDone.Reason)."""

    END = 1
    STOP = 2
    MAX_TOKENS = 3
    DEADLINE = 4


@dataclass(frozen=True)
class ChatSpec:
    """`image_task` is the task that answers a conversation about an image; "": the model sees nothing. `warm_up_tokens`
    is the `max_tokens` of the requests that warm up, where the task has that option."""

    task: str = "chat"
    warm_up_tokens: int = 4
    image_task: str = ""


@dataclass(frozen=True)
class SpeechSpec:
    """`voices` are the choices of the option `voice`, `default_voice` its default; without voices there is none.
    `warm_up_tokens`: see ChatSpec."""

    task: str = "speech"
    sample_rate_hz: int = 24_000
    voices: tuple[str, ...] = ()
    default_voice: str = ""
    warm_up_tokens: int = 32


@dataclass(frozen=True)
class ImageSpec:
    """Names of tasks, "" where there is none: `draw` an image, `think` first and draw then, `edit` an image that is
    given. `default_size` (height, width) is that of an image for which no other is asked; edits have their image's.
    `warm_up_steps` and `warm_up_tokens` are the `num_denoise_steps` and `max_tokens` of the requests that warm up."""

    draw: str = ""
    think: str = ""
    edit: str = ""
    default_size: tuple[int, int] = (1024, 1024)
    warm_up_steps: int = 2
    warm_up_tokens: int = 4

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(name for name in (self.draw, self.think, self.edit) if name)


@dataclass(frozen=True)
class GenerationSpec:
    chat: ChatSpec | None = None
    speech: SpeechSpec | None = None
    images: ImageSpec | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """All that it names."""
        names = [] if self.chat is None else [self.chat.task, self.chat.image_task]
        names += [] if self.speech is None else [self.speech.task]
        return (*(name for name in names if name), *(() if self.images is None else self.images.tasks))


def warm_up_options(model: ServedModel, task: TaskSpec) -> dict[str, int]:
    """What a warm-up asks for in place of defaults: a first run shall not write a whole text or make a whole image."""
    generation = model.generation or GenerationSpec()
    few: dict[str, int] = {}
    if generation.chat is not None and task.name in (generation.chat.task, generation.chat.image_task):
        few = {"max_tokens": generation.chat.warm_up_tokens}
    elif generation.speech is not None and task.name == generation.speech.task:
        few = {"max_tokens": generation.speech.warm_up_tokens}
    elif generation.images is not None and task.name in generation.images.tasks:
        images = generation.images
        few = {"max_tokens": images.warm_up_tokens, "num_denoise_steps": images.warm_up_steps}
    names = {param.name for param in task.params}
    return {name: value for name, value in few.items() if name in names}
