-- Shared by all that stores a message to be sent. A packed one begins with its task, id and mid, each with a \t behind.

-- Puts one message at the end of its lane, and wakes a relay unless the lane waits for something.
-- keys: outbox_seq, lane, outbox_due, outbox_wake
local function outbox_put(keys, lane, packed, now)
  local seq = redis.call('INCR', keys.outbox_seq)
  redis.call('ZADD', keys.lane, seq, packed)
  if redis.call('ZADD', keys.outbox_due, 'NX', now, lane) == 1 then
    if redis.call('LLEN', keys.outbox_wake) == 0 then redis.call('RPUSH', keys.outbox_wake, lane) end
  end
  return seq
end
