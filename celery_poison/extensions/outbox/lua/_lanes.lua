-- Shared by the scripts of the outbox. A lane is QUEUE, QUEUE\tTASK (of a task that waits by itself), or either
-- with \ttied at the end: QUEUE\t\ttied.

local function lane_parts(lane)
  local queue, rest = lane:match('^([^\t]*)\t?(.*)$')
  local task, tied = rest:match('^([^\t]*)\t?(.*)$')
  return queue, task, tied
end

-- The lane in which messages of one task wait by themselves, beside the others of its queue.
local function lane_of_task(lane, task)
  local queue, _, tied = lane_parts(lane)
  return queue .. '\t' .. task .. (tied ~= '' and '\ttied' or '')
end

local function lane_is_blocked(blocked, lane)
  local queue, task = lane_parts(lane)
  if redis.call('HEXISTS', blocked, queue) == 1 then return true end
  return task ~= '' and redis.call('HEXISTS', blocked, queue .. '\t' .. task) == 1
end

-- How the sending of a lane stands: fence, tries, single (one by one up to this number), cause, failed_seq.
local function lane_state(lanes, lane)
  local read, told = pcall(cjson.decode, redis.call('HGET', lanes, lane) or '')
  local state = read and type(told) == 'table' and told or {}
  for name, usual in pairs({fence = 0, tries = 0, single = 0, cause = '', failed_seq = 0}) do
    if type(state[name]) ~= type(usual) then state[name] = usual end
  end
  return state
end

-- Moves one message to another lane, where it keeps its number.
local function outbox_move(keys, from, to_key, to, seq, packed, now)
  redis.call('ZADD', to_key, seq, packed)
  redis.call('ZREMRANGEBYSCORE', from, seq, seq)
  redis.call('ZADD', keys.outbox_due, 'NX', lane_is_blocked(keys.outbox_blocked, to) and '+inf' or now, to)
end

-- The lane has been looked at: it is due again at `at` if anything is left in it.
local function outbox_look_again(keys, lane, lane_key, state, at)
  if redis.call('ZCARD', lane_key) == 0 then
    redis.call('ZREM', keys.outbox_due, lane)
    redis.call('HDEL', keys.outbox_lanes, lane)
    return 0
  end
  redis.call('HSET', keys.outbox_lanes, lane, cjson.encode(state))
  redis.call('ZADD', keys.outbox_due, lane_is_blocked(keys.outbox_blocked, lane) and '+inf' or at, lane)
  return redis.call('ZCARD', lane_key)
end
