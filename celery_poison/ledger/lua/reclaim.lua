-- reclaim: a worker that was taken for dead rejoins, and this start of it is still running. If no worker has
-- started the message anew, it is the worker's again, and what was held against it is taken back.
-- KEYS[1] running    hash
-- KEYS[2] lineage    hash
-- KEYS[3] candidates zset
-- KEYS[4] journal    stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] start  under the worker's new name
-- RETURNS OK | STALE (the message has a new owner, or has ended elsewhere)
-- JOURNALS cleared (when it was a candidate for this)
local e = start_of(ARGV[3])
local current = start_of(redis.call('HGET', KEYS[1], ARGV[2]))
local line = hash(KEYS[2])
if current and current.token ~= e.token then return {'STALE'} end
if not current and line.last_token ~= e.token then return {'STALE'} end
-- That it began is not on record here: the process that begins it writes that, or has written it.
if current and e.pid == 0 then e.fields[1], e.fields[4], e.fields[5] = current.phase, current.pid, current.at_ms end
redis.call('HSET', KEYS[1], ARGV[2], cjson.encode(e.fields))
if current then return {'OK'} end
--@ lived(line, KEYS[2], e.token)
local strikes = take_back(KEYS[2], line, e.alone > 0)
if line.candidate == '1' and strikes == 0 then
  redis.call('ZREM', KEYS[3], e.id)
  journal(KEYS[4], ARGV[1], {event = 'cleared', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
    queue = e.queue, worker = e.worker, state = 'DLNG', cause = line.cause, deliveries = e.deliveries,
    crashes = line.crashes, strikes = line.strikes, failures = line.failures, incident = line.incident,
    note = 'its worker was taken for dead and is back', payload_bytes = e.payload_bytes})
end
if tonumber(line.crashes or 0) == 0 and tonumber(line.failures or 0) == 0 then
  redis.call('DEL', KEYS[2])
else
  redis.call('HSET', KEYS[2], 'candidate', strikes > 0 and '1' or '0')
end
return {'OK'}
