-- outbox_resend: what waits is sent at once, and what is blocked is unblocked first if that is asked for.
-- KEYS[1] outbox_due     zset
-- KEYS[2] outbox_lanes   hash
-- KEYS[3] outbox_blocked hash
-- KEYS[4] outbox_wake    list
-- KEYS[5] journal        stream
-- ARGV[1] maxlen
-- ARGV[2] queue    '' for any
-- ARGV[3] task     only what waits because of this task; '' for all of the queue
-- ARGV[4] unblock  1: it was blocked
-- ARGV[5] actor
-- ARGV[6] note
-- RETURNS OK, lanes that are due now | DONE (it is not blocked)
-- JOURNALS queue_unblocked
if ARGV[4] == '1' then
  local what = ARGV[3] == '' and ARGV[2] or ARGV[2] .. '\t' .. ARGV[3]
  if redis.call('HDEL', KEYS[3], what) == 0 then return {'DONE'} end
  journal(KEYS[5], ARGV[1], {event = 'queue_unblocked', queue = ARGV[2], task = ARGV[3], actor = ARGV[5], note = ARGV[6]})
end
local now, due = now_ms(), 0
for _, lane in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local queue, task = lane_parts(lane)
  local asked = (ARGV[2] == '' or ARGV[2] == queue) and (ARGV[3] == '' or ARGV[3] == task)
  local state = lane_state(KEYS[2], lane)
  local waits = state.cause ~= '' or tonumber(redis.call('ZSCORE', KEYS[1], lane)) == math.huge
  if asked and waits and not lane_is_blocked(KEYS[3], lane) then
    state.tries = 0
    redis.call('HSET', KEYS[2], lane, cjson.encode(state))
    -- A relay that has it at this moment is sending already.
    if not state.leased then redis.call('ZADD', KEYS[1], now, lane) end
    due = due + 1
  end
end
if due > 0 and redis.call('LLEN', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], ARGV[2]) end
return {'OK', due}
