-- survived: a start that its worker does not find on record any more ended alive after all. What was held
-- against it is taken back; if the message has a new owner meanwhile, nothing of the new owner's is touched.
-- KEYS[1] running    hash
-- KEYS[2] done       hash
-- KEYS[3] lineage    hash
-- KEYS[4] candidates zset
-- KEYS[5] journal    stream
-- KEYS[6] counts     hash
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] token
-- ARGV[4] id
-- ARGV[5] guilt  cleared, kept or unproven, see _lineage.lua: unless it cleared it, earlier strikes stay
-- ARGV[6] lost   the start, if its worker knows that the message has, or had, a new owner; '' otherwise
-- RETURNS OK (also when nothing was held against this start) | STALE (the message ran elsewhere, or does by now)
-- JOURNALS cleared (when it was a candidate for this), stale
local line = hash(KEYS[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
local mine = line.last_token == ARGV[3]
if mine and ARGV[5] ~= 'cleared' then
  -- A death by its worker's is exact only if it was alone, or being received.
  mine = take_back(KEYS[3], line, line.cause ~= 'receive') == 0 and line.probation ~= '1'
  line.charged = ''
  if not mine and not current and ARGV[5] == 'unproven' then set_aside(KEYS[3], KEYS[4], ARGV[4], ARGV[2]) end
end
if mine then
  if line.candidate == '1' then
    count(KEYS[6], 'cleared')
    journal(KEYS[5], ARGV[1], {event = 'cleared', id = ARGV[4], mid = ARGV[2], token = ARGV[3],
      task = line.task, queue = line.queue, worker = line.worker, state = 'DLVD', cause = line.cause,
      deliveries = line.deliveries, crashes = line.crashes, strikes = line.strikes,
      failures = line.failures, incident = line.incident,
      note = 'ended alive after its worker was taken for dead', payload_bytes = line.payload_bytes})
    redis.call('ZREM', KEYS[4], ARGV[4])
  end
  -- Its failures are also those of its retry, which may wait in a queue.
  local own = string.sub(line.charged or '', 1, 7) == 'failure' and 1 or 0
  local failures = tonumber(line.failures or 0) - own
  if current or failures > 0 then
    -- Another delivery of it is under way, and will close the record when it ends; or a retry may.
    redis.call('HSET', KEYS[3], 'candidate', '0', 'strikes', '0', 'old_strikes', '0', 'proven', '0', 'tried', '0',
      'spoilt', '0', 'doubt', '0')
    redis.call('HDEL', KEYS[3], 'cut_off', 'cut_off_by')
    if not current then
      redis.call('HSET', KEYS[3], 'failures', failures, 'charged', '', 'probation', '0', 'doubted', '0')
    end
    expire_history(KEYS[3])
  else
    redis.call('DEL', KEYS[3])
  end
end
if current and current.token == ARGV[3] or not current and ARGV[6] == '' then
--@ lived(line, KEYS[3], ARGV[3])
  return {'OK'}
end
redis.call('HDEL', KEYS[2], ARGV[3])
local lost = start_of(ARGV[6])
local e = current or lost
journal(KEYS[5], ARGV[1], {event = 'stale', id = ARGV[4], mid = ARGV[2], token = ARGV[3],
  task = e.task, queue = e.queue, worker = lost and lost.worker or line.worker,
  note = current and 'ended, but runs elsewhere by now' or 'ended, but ran elsewhere meanwhile'})
return {'STALE'}
