-- Shared by the scripts that clear the history of a message which ended alive, or write one that may be forgotten.

-- The end of a message may never come to be known: its worker was cut off, and Redis restarted meanwhile.
local function expire_history(lineage)
  if redis.call('HGET', lineage, 'candidate') ~= '1' then redis.call('EXPIRE', lineage, 2592000) end
end

-- Take back what a start was charged with that ended alive after all, or lives: `line` is its history, as it is read;
-- `on_trial` it was alone. Returns the strikes that are left.
local function take_back(lineage, line, on_trial)
  local charge, before, spoilt = string.match(line.charged or '', '^(%a*) ?(%d*) ?(%d*)$')
  if charge == 'strike' then
    line.crashes = redis.call('HINCRBY', lineage, 'crashes', -1)
    line.strikes = redis.call('HINCRBY', lineage, 'strikes', -1)
    if line.blame == 'exact' then
      redis.call('HINCRBY', lineage, 'proven', -1)
      redis.call('HINCRBY', lineage, 'tried', on_trial and -1 or 0)
    end
    if before ~= '' then redis.call('HSET', lineage, 'doubted', before) end
  elseif charge == 'failure' then
    line.failures = redis.call('HINCRBY', lineage, 'failures', -1)
  end
  if charge ~= 'strike' and (spoilt or '') ~= '' then
    -- Redis 7.0 takes no minus zero.
    redis.call('HINCRBY', lineage, 'doubt', 0 - before)
    redis.call('HINCRBY', lineage, 'spoilt', 0 - spoilt)
  end
  -- It lived: what it dies of, or is put back for, from now on is news, and no repetition.
  redis.call('HDEL', lineage, 'cut_off', 'cut_off_by', 'last_token', 'charged')
  return tonumber(line.strikes or 0)
end

-- Take its flag away, but not what it was given for: nothing is left that could be tried.
local function set_aside(lineage, candidates, id, mid)
  redis.call('ZREM', candidates, id)
  redis.call('HSET', lineage, 'candidate', '0', 'ended', mid)
  expire_history(lineage)
end

-- Clear its flag, and journal that, and its history goes; unless its end proves nothing. Whether something was cleared:
-- it was suspected, or a released message; nil where it has no history. `why` it never ran, if it did not.
-- `guilt` cleared | kept (its retry goes on under it) | unproven (what comes under its id, if anything does, has its
-- strikes, or is on probation)
local function clear_and_journal(lineage, candidates, counts, stream, maxlen, mid, e, guilt, why)
  local line = hash(lineage)
  if not line.id then return nil end
  local mine = line.last_token == e.token
  if mine and guilt ~= 'cleared' then take_back(lineage, line, e.alone > 0) end
  local strikes, on_probation = tonumber(line.strikes or 0), line.probation == '1'
  local cleared = line.candidate == '1' or on_probation or strikes > 0
  if cleared and why and why ~= '' then
    journal(stream, maxlen, {event = 'duplicate', id = e.id, mid = mid, token = e.token, task = e.task,
      queue = e.queue, worker = e.worker, state = 'DLVD', deliveries = e.deliveries, note = why})
  end
  if guilt == 'kept' or guilt == 'unproven' and (strikes > 0 or on_probation) then
    redis.call('HDEL', lineage, 'last_token', 'charged')  -- a start that was cut off before has lost it
    if guilt == 'unproven' then set_aside(lineage, candidates, e.id, mid) end
    return false
  end
  if cleared and (why or '') == '' then
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
