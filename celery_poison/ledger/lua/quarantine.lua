-- quarantine: TBDL | DLNG -> NDLV. Keeps the original message, before anybody acknowledges it.
-- KEYS[1] running    hash
-- KEYS[2] done       hash
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] message    hash
-- KEYS[6] quarantine zset
-- KEYS[7] failed     zset
-- KEYS[8] parked     hash
-- KEYS[9] parcels    hash
-- KEYS[10] blocks    hash
-- KEYS[11] convictions string
-- KEYS[12] journal   stream
-- KEYS[13] counts    hash
-- KEYS[14] outgoing  zset
-- KEYS[15] groups    prefix
-- KEYS[16] wanted    hash
-- KEYS[17] unprocessable string
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start      the delivery that hands the message over
-- ARGV[4] cause
-- ARGV[5] reason
-- ARGV[6] fingerprint of the message
-- ARGV[7] block_after convictions of one fingerprint that block it, 0: never; '' when this is none
-- ARGV[8] remember_ms how long convictions, and blocks that come of them, last
-- ARGV[9] known      other facts of the start, see _journal.lua
-- ARGV[10] limit     messages in quarantine beyond which it is not kept; '' for none
-- ARGV[11] destination  the queue that it goes to from here; '' for none
-- ARGV[12] retry_ms  after which it goes back to its own queue; '' for never
-- ARGV[13] limit_bytes  of what never reached a task, beyond which it is not kept; '' for what is not counted
-- ARGV[14] fields    field, value, ... of the original message, from here on
-- RETURNS OK | KEPT (it is there already) | ILLEGAL, state (it was given up) | STALE (it runs elsewhere) |
--   FULL (there is no room for it)
-- JOURNALS quarantined, duplicate (for a parked copy: the one in quarantine is the one truth), blocked
local e = start_of(ARGV[3])
local state = redis.call('HGET', KEYS[5], 'state')
if state == 'NDLV' then return {'KEPT'} end
if state then return {'ILLEGAL', state} end
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
if current and current.token ~= e.token then return {'STALE'} end
if ARGV[10] ~= '' and redis.call('ZCARD', KEYS[6]) >= tonumber(ARGV[10]) then return {'FULL'} end
-- Nothing is written before that: a script which has written anything writes on in a Redis that is full.
local size = 0
if ARGV[13] ~= '' then
  size = size_of(ARGV, 14)
  if tonumber(redis.call('GET', KEYS[17]) or 0) + size > tonumber(ARGV[13]) then return {'FULL'} end
end
local line, now = hash(KEYS[3]), now_ms()
local known = add_known({}, ARGV[9])
local evidence = known.evidence or line.evidence or ''
--@ kept(line, e.token, may_have_run(e, current))
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], e.token)
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[4], e.id)
-- The person who asked for it knows its task id.
if redis.call('HEXISTS', KEYS[16], e.id) == 1 then
  redis.call('HSET', KEYS[16], e.id, cjson.encode({mid = ARGV[2]}))
end
redis.call('HSET', KEYS[5], 'state', 'NDLV', 'id', e.id, 'mid', ARGV[2], 'task', e.task, 'queue', e.queue,
  'cause', ARGV[4], 'reason', ARGV[5], 'candidate', line.candidate or '0',
  'deliveries', line.deliveries or e.deliveries, 'crashes', line.crashes or 0, 'strikes', line.strikes or 0,
  'failures', line.failures or 0, 'releases', line.releases or 0,
  'release', 0, 'decisions', line.release or 0, 'worker', line.worker or e.worker,
  'incident', line.incident or '', 'first_seen', line.first_seen or now, 'last_seen', now,
  'quarantined_at', now, 'payload_bytes', e.payload_bytes,
  'pid', line.pid or '', 'runtime_ms', line.runtime_ms or '', 'evidence', evidence)
redis.call('HSET', KEYS[5], unpack(ARGV, 14))
if size > 0 then
  redis.call('HSET', KEYS[5], 'counted', size)
  redis.call('INCRBY', KEYS[17], size)
end
-- A person's schedule goes before the time that a setting gives.
local pause, left = ARGV[12], tonumber(line.releases_left or 0)
local not_rerun = redis.call('HGET', KEYS[5], 'not_rerun') == '1'
if left > 0 and ARGV[11] == '' and not not_rerun then
  pause = line.release_pause_ms
  redis.call('HSET', KEYS[5], 'releases_left', left, 'release_pause_ms', pause,
    'actor', line.actor or '', 'note', line.note or '')
end
local leaves_at = ARGV[11] ~= '' and now or pause ~= '' and now + tonumber(pause)
if ARGV[11] ~= '' then redis.call('HSET', KEYS[5], 'destination', ARGV[11]) end
if pause ~= '' then redis.call('HSET', KEYS[5], 'retry_at', leaves_at) end
-- An entry of an earlier time there is not to take it along.
if leaves_at then redis.call('ZADD', KEYS[14], leaves_at, ARGV[2]) else redis.call('ZREM', KEYS[14], ARGV[2]) end
redis.call('ZADD', KEYS[6], now, ARGV[2])
enter_groups(KEYS[15], KEYS[5], ARGV[2], now)
count(KEYS[13], 'quarantined', ARGV[4])
end_parking_and_journal(KEYS[8], KEYS[9], KEYS[12], ARGV[1], ARGV[2], 'kept')
journal(KEYS[12], ARGV[1], {event = 'quarantined', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = line.worker or e.worker, state = 'NDLV', cause = ARGV[4],
  deliveries = line.deliveries or e.deliveries, crashes = line.crashes or 0, strikes = line.strikes or 0,
  failures = line.failures or 0, incident = line.incident, note = ARGV[5], payload_bytes = e.payload_bytes,
  fingerprint = ARGV[6], shape = known.shape, release = known.release, evidence = evidence,
  outcome = not_rerun and 'not_rerun' or ''})
if ARGV[7] ~= '' then
  local keys = {blocks = KEYS[10], convictions = KEYS[11], journal = KEYS[12]}
  convicted_again(keys, ARGV[1], ARGV[6], e.task, tonumber(ARGV[7]), tonumber(ARGV[8]))
end
return {'OK'}
