-- interrupt: DLNG -> TBDL, without a strike. Shutdown, revocation, lost lease: no message is at fault.
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
-- ARGV[6] failure  1 when it counts as a failure (its worker fell silent for no known reason)
-- ARGV[7] fence    of the monitor that reports it, '' when its own worker does
-- ARGV[8] doubt    what the end of its worker weighs, when it was on trial, see rules/doubts.py
-- ARGV[9] known    other facts of the start, see _journal.lua
-- ARGV[10] died_at  of a worker: its last sign of life; '' when the start's own worker reports it
-- ARGV[11] spoilt  1 when nothing outside has a share in that
-- RETURNS OK | DONE (it had finished) | STALE (the message has a newer start, or none) | FENCED
-- JOURNALS interrupted
if fenced(KEYS[4], ARGV[7]) then return {'FENCED'} end
local e = start_of(ARGV[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
if not current or is_stale(current, e, ARGV[7]) then return {'STALE'} end
if redis.call('HGET', KEYS[2], e.token) == 'D' then return {'DONE'} end
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], e.token)
if e.phase == 'C' then return {'OK'} end
local now = now_ms()
-- What `reclaim` takes back, in one word: `failure` or nothing, then the doubt of a trial.
local charged = ARGV[6] == '1' and 'failure' or ''
if ARGV[8] ~= '0' or ARGV[11] == '1' then charged = charged .. ' ' .. ARGV[8] .. ' ' .. ARGV[11] end
redis.call('HSETNX', KEYS[3], 'first_seen', now)
redis.call('HSET', KEYS[3], 'id', e.id, 'mid', ARGV[2], 'task', e.task, 'queue', e.queue,
  'deliveries', e.deliveries, 'last_seen', now, 'worker', e.worker, 'last_token', e.token,
  'charged', charged)
redis.call('HINCRBY', KEYS[3], 'doubt', ARGV[8])
redis.call('HINCRBY', KEYS[3], 'spoilt', ARGV[11])
expire_history(KEYS[3])
local failures = redis.call('HINCRBY', KEYS[3], 'failures', ARGV[6])
local begun = may_have_run(e, current, ARGV[4])
if begun then note_cut_off(KEYS[3], ARGV[2], ARGV[4]) end
local line = {event = 'interrupted', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, pid = e.pid, state = 'TBDL', cause = ARGV[4], deliveries = e.deliveries,
  failures = failures, runtime_ms = ran_until(ended_at(ARGV[10], ARGV[7], now), e, current), incident = ARGV[5],
  payload_bytes = e.payload_bytes}
journal(KEYS[5], ARGV[1], add_known(line, ARGV[9]))
--@ cut_off(now, line, KEYS[3], begun, e.diverts ~= 0)
return {'OK'}
