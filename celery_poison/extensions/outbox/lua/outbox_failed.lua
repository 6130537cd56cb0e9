-- outbox_failed: a lane could not be sent. It waits; or its first message failed for good, and that is told.
-- KEYS[1] outbox_due     zset
-- KEYS[2] outbox_lanes   hash
-- KEYS[3] outbox_blocked hash
-- KEYS[4] lane           zset
-- KEYS[5] outbox_failed  zset
-- KEYS[6] outbox_seq     string
-- KEYS[7] outbox_wake    list
-- KEYS[8] journal        stream
-- ARGV[1] maxlen
-- ARGV[2] name_of_lane
-- ARGV[3] fence
-- ARGV[4] wait_ms  until it is tried again
-- ARGV[5] single   number of the last message that is sent by itself from now on, 0: as before
-- ARGV[6] verdict  again (nothing is counted), retry, or failed
-- ARGV[7] seq      number of the message
-- ARGV[8] cause
-- ARGV[9] scope    queue, or task: only messages of its task wait
-- ARGV[10] blocks  1: what waits is blocked until somebody unblocks it
-- ARGV[11] lanes   prefix of the lanes
-- ARGV[12] note
-- ARGV[13] errors  from here on: lane and packed message of each error transaction
-- RETURNS OK, 1 if something is blocked by this | CONFLICT (another relay has the lane by now)
-- JOURNALS send_failed, queue_blocked
local now, lane, number = now_ms(), ARGV[2], ARGV[7]
local keys = {outbox_due = KEYS[1], outbox_lanes = KEYS[2], outbox_blocked = KEYS[3],
  outbox_seq = KEYS[6], outbox_wake = KEYS[7]}
local state = lane_state(KEYS[2], lane)
if state.fence ~= tonumber(ARGV[3]) then return {'CONFLICT'} end
state.leased = nil
state.single = math.max(state.single, tonumber(ARGV[5]))
if ARGV[6] ~= 'again' then
  state.cause, state.tries = ARGV[8], ARGV[6] == 'retry' and state.tries + 1 or 0
end
local packed = redis.call('ZRANGEBYSCORE', KEYS[4], number, number)[1]
if ARGV[6] ~= 'failed' or not packed then
  outbox_look_again(keys, lane, KEYS[4], state, now + tonumber(ARGV[4]))
  return {'OK', 0}
end
local queue, own, tied = lane_parts(lane)
local task, id, mid = packed:match('^([^\t]*)\t([^\t]*)\t([^\t]*)\t')
local by_task, blocks = ARGV[9] == 'task', 0
if ARGV[10] == '1' then
  local what = by_task and queue .. '\t' .. task or queue
  blocks = redis.call('HSETNX', KEYS[3], what,
    cjson.encode({at_ms = now, cause = ARGV[8], actor = '', note = ARGV[12], seq = tonumber(number)}))
  if blocks == 1 then
    journal(KEYS[8], ARGV[1], {event = 'queue_blocked', queue = queue, task = by_task and task or '',
      cause = ARGV[8], actor = '', note = ARGV[12]})
  end
end
if state.failed_seq ~= tonumber(number) then  -- told once, however often it fails
  journal(KEYS[8], ARGV[1], {event = 'send_failed', id = id, mid = mid, task = task, queue = queue,
    cause = ARGV[8], note = ARGV[12]})
  for i = 13, #ARGV - 1, 2 do
    keys.lane = ARGV[11] .. ARGV[i]
    outbox_put(keys, ARGV[i], ARGV[i + 1], now)
  end
end
state.failed_seq = tonumber(number)
if tied ~= '' then  -- transaction-synchronous: the others go on
  redis.call('ZADD', KEYS[5], number, packed)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], number, number)
  state.cause, state.failed_seq = '', 0
  outbox_look_again(keys, lane, KEYS[4], state, now)
elseif by_task and own == '' then  -- the task waits by itself from now on, the others go on
  local waits = lane_of_task(lane, task)
  outbox_move(keys, KEYS[4], ARGV[11] .. waits, waits, number, packed, now + tonumber(ARGV[4]))
  redis.call('HSET', KEYS[2], waits, cjson.encode({fence = 0, tries = 0, single = 0, cause = ARGV[8],
    failed_seq = tonumber(number)}))
  state.cause, state.failed_seq = '', 0
  outbox_look_again(keys, lane, KEYS[4], state, now)
else
  outbox_look_again(keys, lane, KEYS[4], state, now + tonumber(ARGV[4]))
end
return {'OK', blocks}
