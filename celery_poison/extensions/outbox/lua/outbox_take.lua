-- outbox_take: a relay takes the first messages of a lane that is due, for lease_ms; nobody else may meanwhile.
-- Messages of a task that waits by itself go to that task's lane on the way.
-- KEYS[1] outbox_due     zset
-- KEYS[2] outbox_lanes   hash
-- KEYS[3] outbox_blocked hash
-- KEYS[4] outbox_seq     string  fencing numbers are taken from it, too
-- KEYS[5] parked         hash
-- KEYS[6] running        hash
-- ARGV[1] lanes     prefix of the lanes
-- ARGV[2] lease_ms
-- ARGV[3] most      messages at once
-- ARGV[4] trouble   1: only lanes whose last sending failed, 0: only others
-- ARGV[5] notes     1: note each message before it is sent, so that a second copy of it can be recognised
-- RETURNS OK, lane, fence, tries, failed_seq, then of each message: its number; 0, or the number of its note if it
--   may have been sent before, or -1 if it certainly has been; packed |
--   DONE, ms until a lane is due ('' for none)
-- JOURNALS nothing
local now, most = now_ms(), tonumber(ARGV[3])
local keys = {outbox_due = KEYS[1], outbox_lanes = KEYS[2], outbox_blocked = KEYS[3]}

-- What may be sent of the first messages of a lane. Looks at a bounded number of them.
local function heads(lane, lane_key, count)
  local queue, own = lane_parts(lane)
  for _ = 1, 10 do
    local rows, found = redis.call('ZRANGE', lane_key, 0, count - 1, 'WITHSCORES'), {}
    for i = 1, #rows, 2 do
      local task = rows[i]:match('^[^\t]*')
      local waits = lane_of_task(lane, task)
      if own == '' and (redis.call('ZSCORE', KEYS[1], waits)
          or redis.call('HEXISTS', KEYS[3], queue .. '\t' .. task) == 1) then
        outbox_move(keys, lane_key, ARGV[1] .. waits, waits, rows[i + 1], rows[i], now)
      else
        found[#found + 1] = {rows[i + 1], rows[i]}
      end
    end
    if #found > 0 or #rows == 0 then return found end
  end
  return {}
end

-- Notes a message as published, so that its end is remembered: see _parking.lua.
local function noted(queue, seq, packed)
  if ARGV[5] ~= '1' then return 0 end
  local task, id, mid = packed:match('^([^\t]*)\t([^\t]*)\t([^\t]*)\t')
  local note = parking_of(KEYS[5], mid)
  if not note then
    local copy = {"C", 'outbox.' .. seq, '', 0, 0, 1, 0, id, task, queue, 0, 0, 0, 1}
    redis.call('HSET', KEYS[5], mid, parking_text('published', now, {fields = copy}))
    return 0
  end
  local ours = note.state == 'published' and note.start.token:sub(1, 7) == 'outbox.'
  return ours and redis.call('HEXISTS', KEYS[6], mid) == 0 and note.number or -1
end

for _, lane in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 100)) do
  local state, lane_key = lane_state(KEYS[2], lane), ARGV[1] .. lane
  if lane_is_blocked(KEYS[3], lane) then
    redis.call('ZADD', KEYS[1], '+inf', lane)
  elseif (state.cause ~= '') == (ARGV[4] == '1') then
    local found = heads(lane, lane_key, (state.single > 0 or state.cause ~= '') and 1 or most)
    if #found > 0 then
      state.fence, state.leased = redis.call('INCR', KEYS[4]), 1
      outbox_look_again(keys, lane, lane_key, state, now + tonumber(ARGV[2]))
      local reply = {'OK', lane, state.fence, state.tries, state.failed_seq}
      for _, row in ipairs(found) do
        reply[#reply + 1] = row[1]
        reply[#reply + 1] = noted((lane_parts(lane)), row[1], row[2])
        reply[#reply + 1] = row[2]
      end
      return reply
    end
    outbox_look_again(keys, lane, lane_key, state, now)
  end
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
if not next[2] or next[2] == 'inf' then return {'DONE', ''} end
return {'DONE', math.max(0, tonumber(next[2]) - now)}
