-- outbox_add: messages of one lane are stored, in their order; a relay sends them.
-- KEYS[1] outbox_seq  string
-- KEYS[2] lane        zset
-- KEYS[3] outbox_due  zset
-- KEYS[4] outbox_wake list
-- ARGV[1] name_of_lane
-- ARGV[2] packed      messages, from here on
-- RETURNS OK, sequence number of the last one
-- JOURNALS nothing
local seq, now = 0, now_ms()
local keys = {outbox_seq = KEYS[1], lane = KEYS[2], outbox_due = KEYS[3], outbox_wake = KEYS[4]}
for i = 2, #ARGV do seq = outbox_put(keys, ARGV[1], ARGV[i], now) end
return {'OK', seq}
