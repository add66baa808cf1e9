"""A day: rates that rise to a peak and fall to a trough, with weekends, noise and flash crowds on request."""

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from sim.limits import MAX_RUN_S
from sim.params import Params
from sim.randomness import stream
from traces.generated import Generated
from traces.rates import DAY_S, Daily, Floats, Pulse, Rate, Scaled, Sum
from traces.shapes import SHAPES

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


class FlashCrowd(Params):
    """A crowd that comes and goes: a raised cosine on top of the day."""

    at_s: float = Field(ge=0, description="When the crowd is largest, in seconds from the start.")
    height_per_s: float = Field(gt=0, description="Requests per second that it adds at its largest.")
    width_s: float = Field(gt=0, description="From its first to its last request, in seconds.")


class Diurnal(Generated):
    """Users who sleep: a non-homogeneous Poisson process (or renewal process, see `cv`) that repeats daily.

    Time 0 is midnight. Weekends and noise multiply the daily wave; flash crowds are added and not multiplied.
    """

    duration_s: float = Field(default=DAY_S, gt=0, le=MAX_RUN_S, description="Traffic stops after this long, in seconds.")
    peak_per_s: float = Field(gt=0, description="Requests per second at the peak.")
    trough_per_s: float = Field(ge=0, description="Requests per second at the trough, twelve hours from the peak.")
    peak_hour: float = Field(default=14.0, ge=0, lt=24, description="Hour of the peak, from midnight.")
    shape: Literal["cosine", "triangle", "square"] = Field(
        default="cosine", description="The way from trough to peak; the mean rate is half-way in all of them."
    )
    cv: float = Field(
        default=1.0,
        ge=0,
        le=100,
        description="Coefficient of variation of the gaps: 1 is Poisson, more is burstier, 0 is evenly spaced.",
    )
    weekend_factor: float = Field(default=1.0, ge=0, description="Multiplies the wave on Saturdays and Sundays.")
    first_weekday: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = Field(
        default="monday", description="The weekday that time 0 starts."
    )
    noise: float = Field(
        default=0.0,
        ge=0,
        le=3,
        description="Sigma of a lognormal factor of mean 1 on the wave, drawn anew each `noise_interval_s`.",
    )
    noise_interval_s: float = Field(default=300.0, ge=1, description="How long one factor of the noise lasts.")
    flash_crowds: tuple[FlashCrowd, ...] = Field(default=(), strict=False, description="Crowds on top of the day.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.trough_per_s > self.peak_per_s:
            raise ValueError(f"trough_per_s {self.trough_per_s:g} is above peak_per_s {self.peak_per_s:g}")
        for i, crowd in enumerate(self.flash_crowds):
            if crowd.at_s >= self.duration_s:
                raise ValueError(f"flash_crowds[{i}].at_s {crowd.at_s:g} is not before duration_s {self.duration_s:g}")
        return self

    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps, once the rate is made even."""
        return self.cv

    def rate(self, seed: int | None) -> Rate:
        """Returns the rate that this seed draws from; None: the expected rate, before any noise."""
        scale = self.rate_scale
        wave: Rate = Daily(scale * self.peak_per_s, scale * self.trough_per_s, 3600 * self.peak_hour, SHAPES[self.shape])
        if self.weekend_factor != 1:
            wave = Scaled(wave, self._weekend_factors(), DAY_S)
        if self.noise > 0 and seed is not None:
            wave = Scaled(wave, self._noise_factors(seed), self.noise_interval_s)
        crowds = [Pulse(crowd.at_s, scale * crowd.height_per_s, crowd.width_s) for crowd in self.flash_crowds]
        return Sum([wave, *crowds]) if crowds else wave

    def _weekend_factors(self) -> Floats:
        days = np.arange(np.ceil(self.duration_s / DAY_S), dtype=np.int64) + WEEKDAYS.index(self.first_weekday)
        return np.where(days % 7 >= WEEKDAYS.index("saturday"), self.weekend_factor, 1.0)

    def _noise_factors(self, seed: int) -> Floats:
        num_intervals = int(np.ceil(self.duration_s / self.noise_interval_s))
        normals = stream(seed, "noise").standard_normal(num_intervals)
        return np.exp(self.noise * normals - self.noise**2 / 2)
