-- outbox_drop: a person takes one message out of its place; for good, or to send it again.
-- KEYS[1] outbox_due     zset
-- KEYS[2] outbox_lanes   hash
-- KEYS[3] outbox_blocked hash
-- KEYS[4] lane           zset    where it is: a lane, or the failed ones
-- KEYS[5] parked         hash
-- KEYS[6] outbox_seq     string
-- KEYS[7] outbox_wake    list
-- KEYS[8] journal        stream
-- ARGV[1] maxlen
-- ARGV[2] name_of_lane  where it is, '' for the failed ones
-- ARGV[3] number
-- ARGV[4] to      the lane in which it is sent again, '' for none
-- ARGV[5] lanes   prefix of the lanes
-- ARGV[6] actor
-- ARGV[7] note
-- RETURNS OK | MISSING (it is not there any more)
-- JOURNALS send_dropped, send_retried
local packed = redis.call('ZRANGEBYSCORE', KEYS[4], ARGV[3], ARGV[3])[1]
if not packed then return {'MISSING'} end
local task, id, mid = packed:match('^([^\t]*)\t([^\t]*)\t([^\t]*)\t')
redis.call('ZREMRANGEBYSCORE', KEYS[4], ARGV[3], ARGV[3])
local keys = {outbox_due = KEYS[1], outbox_lanes = KEYS[2], outbox_blocked = KEYS[3],
  outbox_seq = KEYS[6], outbox_wake = KEYS[7], lane = ARGV[5] .. ARGV[4]}
if ARGV[4] ~= '' then
  outbox_put(keys, ARGV[4], packed, now_ms())
  journal(KEYS[8], ARGV[1], {event = 'send_retried', id = id, mid = mid, task = task, queue = (lane_parts(ARGV[4])),
    actor = ARGV[6], note = ARGV[7]})
else
  redis.call('HDEL', KEYS[5], mid)
  journal(KEYS[8], ARGV[1], {event = 'send_dropped', id = id, mid = mid, task = task, queue = (lane_parts(ARGV[2])),
    actor = ARGV[6], note = ARGV[7]})
end
if ARGV[2] ~= '' then
  local state = lane_state(KEYS[2], ARGV[2])
  if not state.leased then  -- what stood behind it is tried at once
    state.tries, state.cause = 0, ''
    outbox_look_again(keys, ARGV[2], KEYS[4], state, now_ms())
  end
end
return {'OK'}
