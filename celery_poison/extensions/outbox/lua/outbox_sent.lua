-- outbox_sent: the broker has these messages. Where the broker's queues are in this database, this puts them there:
-- the hand-over is this one step.
-- KEYS[1] outbox_due     zset
-- KEYS[2] outbox_lanes   hash
-- KEYS[3] outbox_blocked hash
-- KEYS[4] lane           zset
-- KEYS[5] parked         hash
-- ARGV[1] name_of_lane
-- ARGV[2] fence
-- ARGV[3] copies  from here on, of each copy: number of the message, mid to forget or '', list or '', payload
-- RETURNS OK, messages left in the lane | CONFLICT (another relay has the lane by now)
--   | HELD, list (something else has its name: nothing was put anywhere)
-- JOURNALS nothing
local keys = {outbox_due = KEYS[1], outbox_lanes = KEYS[2], outbox_blocked = KEYS[3]}
local state = lane_state(KEYS[2], ARGV[1])
if state.fence ~= tonumber(ARGV[2]) then return {'CONFLICT'} end
local known = ''
for i = 3, #ARGV, 4 do  -- before anything is put: what a script has done stays done when it fails
  local list = ARGV[i + 2]
  local kind = list == known and 'list' or redis.call('TYPE', list).ok
  if kind ~= 'list' and kind ~= 'none' then return {'HELD', list} end
  known = list
end
for i = 3, #ARGV, 4 do
  local waits = redis.call('ZCOUNT', KEYS[4], ARGV[i], ARGV[i]) == 1  -- else somebody dropped it
  if waits and ARGV[i + 2] ~= '' then redis.call('LPUSH', ARGV[i + 2], ARGV[i + 3]) end
end
for i = 3, #ARGV, 4 do
  redis.call('ZREMRANGEBYSCORE', KEYS[4], ARGV[i], ARGV[i])
  if ARGV[i + 1] ~= '' then redis.call('HDEL', KEYS[5], ARGV[i + 1]) end
  if state.single > 0 and tonumber(ARGV[i]) >= state.single then state.single = 0 end
end
state.tries, state.cause, state.failed_seq, state.leased = 0, '', 0, nil
return {'OK', outbox_look_again(keys, ARGV[1], KEYS[4], state, now_ms())}
