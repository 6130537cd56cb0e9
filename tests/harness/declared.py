"""Every script under watch: it reaches no key but those it names, and what is written down here for it.

A cluster knows nothing of those which a script does not name: they must be in the slot of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_poison.ledger import scripts
from celery_poison.ledger.scripts import Script

#: Scripts that reach keys which nobody can name beforehand, or which are many: a group's, by what stands in a
#: message; messages, workers, processes and lanes, by what stands in an index.
REACH = frozenset(
    {
        *("quarantine", "released", "regroup", "ungroup", "edit", "give_up", "restore", "import", "groups"),
        *("rows", "originals", "labels", "look", "declare_dead", "watch", "lead"),
        *(
            "outbox_take",
            "outbox_put_rows",
            "outbox_refused",
            "outbox_failed",
            "outbox_drop",
            "send_tied",
            "finish",
            "clean_up",
        ),
    }
)
#: Those that write into a broker's lists, where the ledger is in its database: no cluster's.
BROKERS = frozenset({"outbox_sent", "discard_old"})

_WATCHED = """\
local redis = (function(real, named)
  local declared = {}
  for _, key in ipairs(named) do declared[key] = true end
  local keyless = {INFO = true, TIME = true, PUBSUB = true, PUBLISH = true}
  local function watch(command, ...)
    command = string.upper(command)
    if keyless[command] then return end
    for _, key in ipairs((command == 'DEL' or command == 'EXISTS') and {...} or {(...)}) do
      local is_near = string.match(key, '^%b{}') == string.match(named[1], '^%b{}')
      if not (declared[key] or 'REACH' == 'any' or 'REACH' == 'slot' and is_near) then
        error('NAME reaches a key that it does not name: ' .. command .. ' ' .. key)
      end
    end
  end
  local function watching(how)
    return function(...)
      watch(...)
      return how(...)
    end
  end
  return setmetatable({call = watching(real.call), pcall = watching(real.pcall)}, {__index = real})
end)(redis, KEYS)
"""


@contextmanager
def watched() -> Iterator[None]:
    """Have every script of this process fail where it reaches what it may not."""
    original = Script.__init__

    def init(script: Script, name: str, *text: object) -> None:
        original(script, name, *text)  # type: ignore[arg-type]
        reach = "any" if name in BROKERS else "slot" if name in REACH else ""
        script.text = _WATCHED.replace("REACH", reach).replace("NAME", name) + script.text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Script, "__init__", init)
        _forget_texts()
        yield
    _forget_texts()


def _forget_texts() -> None:
    scripts.script.cache_clear()
    scripts.batch.cache_clear()
