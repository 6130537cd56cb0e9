-- Shared by every script that reads a start: its fields by name, as model.Start has them. They are kept as a
-- JSON array, whose order is part of ledger schema 1.
local START = {'phase', 'token', 'worker', 'pid', 'at_ms', 'deliveries', 'alone', 'id', 'task', 'queue',
  'max_crashes', 'max_failures', 'payload_bytes', 'diverts'}

local function named(fields)
  local e = {fields = fields}
  for i, name in ipairs(START) do e[name] = fields[i] end
  return e
end

-- Whether a process has taken a start up: some of it may have run.
local function has_begun(e)
  return e.phase == 'R' and tonumber(e.pid) > 0
end

-- The same, as its owner knows it or as it is on record; `cause` of its end, where it has ended.
local function may_have_run(e, current, cause)
  return cause ~= 'not_reached' and (has_begun(e) or current ~= nil and has_begun(current))
end

-- How long it had run when it ended, in ms: by its beginning as its owner knows it, else as it is on record. '' where
-- nobody knows one of both, or where it began after the end: a worker may live on after its last sign of life.
local function ran_until(ended_at, e, current)
  local at_ms = e.at_ms > 0 and e.at_ms or current and tonumber(current.at_ms) or 0
  return at_ms > 0 and ended_at and ended_at >= at_ms and ended_at - at_ms or ''
end

-- When it ended, in ms: `died_at` of its worker, or now, if the start's own worker reports it; nil: nobody knows.
local function ended_at(died_at, fence, now)
  return tonumber(died_at) or fence == '' and now or nil
end

-- Notes that a run of a message was cut off, and how often it had been put back till then: where its task must not
-- run twice, it is kept (NEW-16).
local function note_cut_off(lineage, mid, cause)
  redis.call('HSET', lineage, 'cut_off', mid, 'cut_off_by', cause,
    'failed_before', redis.call('HGET', lineage, 'failures') or 0)
end

-- A start from its fields; nil for what somebody else has put there.
local function checked(fields)
  if type(fields) ~= 'table' then return nil end
  local e = named(fields)
  for _, name in ipairs({'phase', 'token', 'worker', 'id', 'task', 'queue'}) do
    if type(e[name]) ~= 'string' then return nil end
  end
  return type(e.pid) == 'number' and e or nil
end

-- The start in a text; nil for no text.
local function start_of(raw)
  local read, fields = pcall(cjson.decode, raw or '')
  return read and checked(fields) or nil
end
