-- interrupt: DLNG -> TBDL without a strike. Shutdown, revocation, lost lease: nobody's fault.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] lineage hash
-- KEYS[4] monitor_fence string
-- KEYS[5] journal stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start
-- ARGV[4] cause
-- ARGV[5] incident
-- ARGV[6] failure  1 when it counts as a failure (its worker fell silent and nobody knows why)
-- ARGV[7] fence    of the monitor that tells it, '' when its own worker does
-- ARGV[8] spoilt   1 when it was on trial, and the worker beside it ended: the next trial is at an idle one
-- ARGV[9] known    what else is known, see _journal.lua
-- RETURNS OK | DONE (it had finished) | STALE (the message has a newer start, or none) | FENCED
-- JOURNALS interrupted
if fenced(KEYS[4], ARGV[7]) then return {'FENCED'} end
local e = cjson.decode(ARGV[3])
local current = entry_of(redis.call('HGET', KEYS[1], ARGV[2]))
if not current or is_stale(current, e, ARGV[7]) then return {'STALE'} end
if redis.call('HGET', KEYS[2], e[2]) == 'D' then return {'DONE'} end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], e[2])
if e[1] == 'C' then return {'OK'} end
local now = now_ms()
redis.call('HSETNX', KEYS[3], 'first_seen', now)
redis.call('HSET', KEYS[3], 'id', e[8], 'mid', ARGV[2], 'task', e[9], 'queue', e[10],
  'deliveries', e[6], 'last_seen', now, 'worker', e[3], 'last_token', e[2],
  'charged', ARGV[6] == '1' and 'failure' or '')
redis.call('HINCRBY', KEYS[3], 'spoilt', ARGV[8])
local failures = redis.call('HINCRBY', KEYS[3], 'failures', ARGV[6])
local line = {event = 'interrupted', id = e[8], mid = ARGV[2], token = e[2], task = e[9],
  queue = e[10], worker = e[3], pid = e[4], state = 'TBDL', cause = ARGV[4], deliveries = e[6],
  failures = failures, runtime_ms = e[5] > 0 and math.max(0, now - e[5]) or '', incident = ARGV[5],
  payload_bytes = e[13]}
journal(KEYS[5], ARGV[1], add_known(line, ARGV[9]))
return {'OK'}
