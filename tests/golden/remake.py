"""Make golden records anew: ``python -m tests.golden.remake [NAME …]``, from the repository root; all without a name.

A record is made anew only where a change of its numbers is meant; the commit says which numbers changed, and why.
"""

import json
import sys
import time
from collections.abc import Sequence

from lbdrop.io.records import provenance

from . import records
from .all import ALL


def main(names: Sequence[str]) -> None:
    if unknown := sorted(set(names) - set(ALL)):
        sys.exit(f"golden record: want names among {', '.join(ALL)}, got {', '.join(unknown)}")
    records.RECORDS.mkdir(exist_ok=True)
    for name in names or ALL:
        began = time.perf_counter()
        numbers = records.run(ALL[name])
        seconds = time.perf_counter() - began
        if wrong := records.differences(records.run(ALL[name]), numbers, exact=True):
            sys.exit(
                f"{name}: want the same numbers in two runs, got others; seed all that is random\n" + "\n".join(wrong)
            )
        about = {key: value for key, value in provenance("cpu").items() if key in ("commit", "date")}
        made = about | {"seconds": round(seconds, 2), "machine": records.machine()}
        lines = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(values, allow_nan=False)}" for key, values in numbers.items()
        )
        text = f'{{\n "made": {json.dumps(made)},\n "numbers": {{\n{lines}\n }}\n}}\n'
        records.path_of(name).write_text(text)
        print(f"{name}: {sum(map(len, numbers.values()))} numbers, {seconds:.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
