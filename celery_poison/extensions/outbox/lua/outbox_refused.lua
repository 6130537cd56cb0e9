-- outbox_refused: a worker received a message that was sent from the outbox, and knows no such task.
-- KEYS[1] outbox_blocked hash
-- KEYS[2] outbox_seq     string
-- KEYS[3] outbox_due     zset
-- KEYS[4] outbox_wake    list
-- KEYS[5] journal        stream
-- ARGV[1] maxlen
-- ARGV[2] queue
-- ARGV[3] task
-- ARGV[4] id
-- ARGV[5] mid
-- ARGV[6] number
-- ARGV[7] cause
-- ARGV[8] note
-- ARGV[9] lanes   prefix of the lanes
-- ARGV[10] errors from here on: lane and packed message of each error transaction
-- RETURNS OK, 1 if that blocks it; 0 also where this outbox has sent no such message
-- JOURNALS send_failed, queue_blocked
-- Any publisher may write such a number into a message: one that was never given out is none of ours, and
-- of guessed ones there shall not be any number of lasting fields.
local number, field = tonumber(ARGV[6]), ARGV[2] .. '\t' .. ARGV[3]
local given_out = number and number > 0 and number <= tonumber(redis.call('GET', KEYS[2]) or 0)
if not given_out or redis.call('HEXISTS', KEYS[1], field) == 0 and redis.call('HLEN', KEYS[1]) >= 200 then
  return {'OK', 0}
end
local now = now_ms()
local blocks = redis.call('HSETNX', KEYS[1], field,
  cjson.encode({at_ms = now, cause = ARGV[7], actor = '', note = ARGV[8], seq = number}))
journal(KEYS[5], ARGV[1], {event = 'send_failed', id = ARGV[4], mid = ARGV[5], task = ARGV[3], queue = ARGV[2],
  cause = ARGV[7], note = ARGV[8]})
if blocks == 1 then
  journal(KEYS[5], ARGV[1], {event = 'queue_blocked', queue = ARGV[2], task = ARGV[3], cause = ARGV[7], actor = '',
    note = ARGV[8]})
end
for i = 10, #ARGV - 1, 2 do
  outbox_put({outbox_seq = KEYS[2], lane = ARGV[9] .. ARGV[i], outbox_due = KEYS[3], outbox_wake = KEYS[4]},
    ARGV[i], ARGV[i + 1], now)
end
return {'OK', blocks}
