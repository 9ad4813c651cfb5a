"""What a window reads, and which of its rows each step takes."""

from __future__ import annotations

from typing import NamedTuple

from pipeline.order.arrays import Array, Arrays, Number


class WindowPlan(NamedTuple):
    """What one window reads and feeds, as int64 arrays where nothing else is said.

    Its records are read into n rows, of which there is one at least. Rows of the *tail*, which the window before left,
    are numbered -1, -2, ...

    Attributes:
      epoch: scalar.
      pieces: (p, 3): segment, first record and end of what is read, in this order.
      records: (n,): the record id in each row.
      slots: (n,): the row of each record, in the order in which they are read.
      num_elements: scalar: the elements that this window completes, one per step and replica.
      take: (elements, rows of a replica): the rows of each element.
      real: bool (elements, rows of a replica): which of them are not padding.
      real_rows: (elements,): rows of each element's global batch that are not padding.
      next_tail: (m,): the rows of this window and its tail that the next window's elements need; m >= 1.
      contiguous: (2,): elements from the first of these numbers to before the second have their rows one after the
        other in the window, which begins with them.
    """

    epoch: Number
    pieces: Array
    records: Array
    slots: Array
    num_elements: Number
    take: Array
    real: Array
    real_rows: Array
    next_tail: Array
    contiguous: Array

    def with_contiguous_elements(self, arrays: Arrays) -> WindowPlan:
        """Returns the plan that has the rows of an element next to each other, so that nothing must be gathered."""
        first, stop = self._complete_elements(arrays)
        taken = arrays.reshape(self.take[first:stop], [-1])
        count = (stop - first) * self.take.shape[1]
        slots = arrays.put(arrays.where(self.slots >= 0, -1, 0), taken, arrays.range(count))
        # The others follow: rows of a step that another window completes, of a padded one, or of other replicas.
        is_other = arrays.where(slots < 0, 1, 0)
        slots = arrays.where(slots < 0, count + arrays.sums_before(is_other), slots)

        def moved(rows: Array) -> Array:
            return arrays.where(rows >= 0, arrays.gather(slots, arrays.maximum(rows, 0)), rows)

        return self._replace(
            records=arrays.put(self.records, slots, self.records),
            slots=slots,
            take=moved(self.take),
            next_tail=moved(self.next_tail),
            contiguous=arrays.concat([first[None], stop[None]]),
        )

    def _complete_elements(self, arrays: Arrays) -> tuple[Number, Number]:
        """Returns the bounds of the elements without a row of the tail, as the first ones have, or of padding."""
        numbers = arrays.range(self.num_elements)
        lies_here = arrays.all_of_row(self.take >= 0)
        first = arrays.most(arrays.where(lies_here, 0, numbers + 1), 0)
        stop = arrays.least(arrays.where(arrays.all_of_row(self.real), self.num_elements, numbers), self.num_elements)
        return first, arrays.maximum(first, stop)
