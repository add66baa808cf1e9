"""`joint`: another pool's autoscaler decides for this pool too."""

from pydantic import Field

from autoscalers.limits import Limits


class Joint(Limits):
    """Leaves the decision to the autoscaler of another pool, one that decides for several at once, within limits of its own.

    No such autoscaler is built in; yours is a subclass of `autoscalers.JointAutoscaler`. It decides for the pool that names it
    and for all that are `joint` with that pool, at its own interval:

        pools:
          - name: prefill
            autoscaler: {kind: my_policies:Ratio, decodes_per_prefill: 2, max_replicas: 8}
          - name: decode
            autoscaler: {kind: joint, with_pool: prefill, max_replicas: 16}
    """

    with_pool: str = Field(description="The pool whose autoscaler decides for this pool too.")

    @property
    def decided_with(self) -> str | None:
        """The pool that it names."""
        return self.with_pool
