-- crash: DLNG -> TBDL + candidate. A start died before it ended: count it, flag its message.
-- KEYS[1] running    hash
-- KEYS[2] done       hash
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] monitor_fence string
-- KEYS[6] gate       hash
-- KEYS[7] journal    stream
-- KEYS[8] counts     hash
-- KEYS[9] message    hash
-- KEYS[10] deaths_by_day hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start      the start that died, as its owner knows it
-- ARGV[4] cause
-- ARGV[5] blame      exact | shared
-- ARGV[6] failure    1 when the death also counts as a failure (time limit)
-- ARGV[7] incident
-- ARGV[8] observe    1 when the message is gone anyway and is only journalled
-- ARGV[9] fence      of the monitor that reports it, '' when its own worker does
-- ARGV[10] known    other facts of the start, see _journal.lua
-- ARGV[11] died_at  of a worker: its last sign of life; '' when the start's own worker reports it
-- RETURNS OK, raw lineage, 1 while the fleet gate is closed | DONE (it had finished) | STALE (the message has
--   a newer start, for a monitor: or none; or it is in quarantine, or given up) | FENCED
-- JOURNALS crashed
local e = start_of(ARGV[3])
local token, id = e.token, e.id
if fenced(KEYS[5], ARGV[9]) then return {'FENCED'} end
local known = redis.call('HGET', KEYS[3], 'last_token')
local now = now_ms()
local closed = gate_is_closed(KEYS[6], now)
if known == token then return {'OK', redis.call('HGETALL', KEYS[3]), closed and 1 or 0} end
local raw = redis.call('HGET', KEYS[1], ARGV[2])
local current = start_of(raw)
if is_stale(current, e, ARGV[9]) or is_kept(KEYS[9]) then return {'STALE'} end
if redis.call('HGET', KEYS[2], token) == 'D' then return {'DONE'} end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], token)
local blame = ARGV[5]
count(KEYS[8], 'crashed', ARGV[4])
count_day(KEYS[10], now, e.task)
count_lately(KEYS[10], now, e.task)
local begun = may_have_run(e, current, ARGV[4])
local ran_ms = ran_until(ended_at(ARGV[11], ARGV[9], now), e, current)
local line = {event = 'crashed', id = id, mid = ARGV[2], token = token, task = e.task, queue = e.queue,
  worker = e.worker, pid = e.pid, state = 'TBDL', cause = ARGV[4], outcome = blame, deliveries = e.deliveries,
  runtime_ms = ran_ms, incident = ARGV[7], payload_bytes = e.payload_bytes}
add_known(line, ARGV[10])
--@ cut_off(now, line, KEYS[3], begun, ARGV[8] ~= '1')
if ARGV[8] == '1' then
  line.state = 'DLVD'
  line.note = 'observed'
  journal(KEYS[7], ARGV[1], line)
  -- No history: by this the same call is recognised if its answer was lost, and the start if its worker lives.
  redis.call('HSET', KEYS[3], 'last_token', token, 'charged', '')
  if redis.call('HEXISTS', KEYS[3], 'id') == 0 then redis.call('EXPIRE', KEYS[3], 3600) end
  return {'OK', {}, closed and 1 or 0}
end
local charged = 'strike'
if closed and ARGV[9] ~= '' then
  -- Among many others its whole worker died: by chance once, even if it ran alone, and not twice.
  local doubted = redis.call('HGET', KEYS[3], 'doubted')
  if doubted ~= '2' then
    charged = 'strike ' .. (doubted or '0')  -- `reclaim` puts that back
    redis.call('HSET', KEYS[3], 'doubted', blame == 'exact' and '2' or '1')
    line.note = blame == 'exact' and 'it ran alone, but many workers died at once' or ''
    blame, line.outcome = 'shared', 'shared'
  end
end
line.crashes = redis.call('HINCRBY', KEYS[3], 'crashes', 1)
line.strikes = redis.call('HINCRBY', KEYS[3], 'strikes', 1)
line.failures = redis.call('HINCRBY', KEYS[3], 'failures', ARGV[6])
redis.call('HINCRBY', KEYS[3], 'proven', blame == 'exact' and 1 or 0)
redis.call('HINCRBY', KEYS[3], 'tried', blame == 'exact' and e.alone > 0 and 1 or 0)
redis.call('HSETNX', KEYS[3], 'first_seen', now)
redis.call('HSET', KEYS[3], 'id', id, 'mid', ARGV[2], 'task', e.task, 'queue', e.queue, 'candidate', '1',
  'cause', ARGV[4], 'blame', blame, 'worker', e.worker, 'incident', ARGV[7], 'last_seen', now,
  'last_token', token, 'charged', charged, 'deliveries', e.deliveries, 'payload_bytes', e.payload_bytes,
  'pid', e.pid, 'runtime_ms', ran_ms, 'evidence', line.evidence or '')
if begun then note_cut_off(KEYS[3], ARGV[2], ARGV[4]) end
redis.call('ZADD', KEYS[4], 'NX', now, id)
redis.call('PERSIST', KEYS[3])
journal(KEYS[7], ARGV[1], line)
return {'OK', redis.call('HGETALL', KEYS[3]), closed and 1 or 0}
