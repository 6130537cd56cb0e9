-- outbox_put_rows: committed rows of the user's database are stored in the outbox, in their order. Each is marked in
-- the same step: a row that is read again, since it could not be deleted, is not stored again.
-- KEYS[1] outbox_mover string
-- KEYS[2] outbox_moved set
-- KEYS[3] outbox_seq   string
-- KEYS[4] outbox_due   zset
-- KEYS[5] outbox_wake  list
-- ARGV[1] mover
-- ARGV[2] lease_ms
-- ARGV[3] lanes  prefix of the lanes
-- ARGV[4] rows   from here on, of each: its uid, lane, packed message
-- RETURNS OK | HELD (another process moves rows by now: what this one has read may be deleted)
-- JOURNALS nothing
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'HELD'} end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local keys, now = {outbox_seq = KEYS[3], outbox_due = KEYS[4], outbox_wake = KEYS[5]}, now_ms()
for i = 4, #ARGV, 3 do
  if redis.call('SADD', KEYS[2], ARGV[i]) == 1 then
    keys.lane = ARGV[3] .. ARGV[i + 1]
    outbox_put(keys, ARGV[i + 1], ARGV[i + 2], now)
  end
end
return {'OK'}
