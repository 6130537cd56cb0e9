-- Shared by every script that journals: one entry of schema v3, all fields, in their fixed order.
local function journal(key, maxlen, e)
  redis.call('XADD', key, 'MAXLEN', '~', maxlen, '*',
    'v', '3', 'event', e.event, 'id', e.id or '', 'mid', e.mid or '', 'token', e.token or '',
    'task', e.task or '', 'queue', e.queue or '', 'worker', e.worker or '', 'pid', e.pid or '',
    'state', e.state or '', 'cause', e.cause or '', 'outcome', e.outcome or '',
    'deliveries', e.deliveries or '', 'crashes', e.crashes or '', 'strikes', e.strikes or '',
    'failures', e.failures or '', 'runtime_ms', e.runtime_ms or '', 'incident', e.incident or '',
    'actor', e.actor or '', 'note', e.note or '', 'payload_bytes', e.payload_bytes or '',
    'memory_kb', e.memory_kb or '', 'fingerprint', e.fingerprint or '', 'shape', e.shape or '',
    'release', e.release or '', 'evidence', e.evidence or '',
    'enqueued_at', e.enqueued_at or '', 'run_memory_kb', e.run_memory_kb or '')
end

-- What else is known about a start, as a JSON object of texts: memory_kb, fingerprint, shape, release, evidence.
local function add_known(e, raw)
  for name, value in pairs(cjson.decode(raw)) do e[name] = value end
  return e
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A hash as a table; absent fields read as nil.
local function hash(key)
  local flat, t = redis.call('HGETALL', key), {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end
