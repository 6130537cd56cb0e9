-- Shared by the scripts that clear the history of a message which ended alive, or write one that may be forgotten.

-- The end of a message may never come to be known: its worker was cut off, and Redis restarted meanwhile.
local function expire_history(lineage)
  if redis.call('HGET', lineage, 'candidate') ~= '1' then redis.call('EXPIRE', lineage, 2592000) end
end

-- Clear its flag, and journal that, and its history goes; unless its end proves nothing. Whether something was cleared:
-- it was a candidate, or a released message; nil where it has no history. `why` it never ran, if it did not.
-- `guilt` cleared | kept (its retry goes on under it) | unproven (what comes under its id, if anything does, has its strikes)
local function clear_and_journal(lineage, candidates, counts, stream, maxlen, mid, e, guilt, why)
  local line = hash(lineage)
  if not line.id then return nil end
  if guilt == 'kept' or guilt == 'unproven' and tonumber(line.strikes or 0) > 0 then
    redis.call('HDEL', lineage, 'last_token', 'charged')  -- a start that was cut off before has lost it
    if guilt == 'unproven' then
      redis.call('ZREM', candidates, e.id)
      redis.call('HSET', lineage, 'candidate', '0')
      expire_history(lineage)
    end
    return false
  end
  local cleared = line.candidate == '1' or line.probation == '1'
  if cleared and why and why ~= '' then
    journal(stream, maxlen, {event = 'duplicate', id = e.id, mid = mid, token = e.token, task = e.task,
      queue = e.queue, worker = e.worker, state = 'DLVD', deliveries = e.deliveries, note = why})
  elseif cleared then
    count(counts, 'cleared')
    journal(stream, maxlen, {event = 'cleared', id = e.id, mid = mid, token = e.token, task = e.task,
      queue = e.queue, worker = e.worker, state = 'DLVD', cause = line.cause, deliveries = e.deliveries,
      crashes = line.crashes, strikes = line.strikes, failures = line.failures, incident = line.incident,
      payload_bytes = e.payload_bytes})
  end
  redis.call('ZREM', candidates, e.id)
  redis.call('DEL', lineage)
  return cleared
end
