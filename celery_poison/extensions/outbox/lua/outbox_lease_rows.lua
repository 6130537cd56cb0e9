-- outbox_lease_rows: one process at a time moves rows of the user's database into the outbox. Takes that, or keeps it,
-- for lease_ms, and forgets the rows that the database does not have any more: nobody can move them again.
-- KEYS[1] outbox_mover string
-- KEYS[2] outbox_moved set
-- ARGV[1] mover     names one process
-- ARGV[2] lease_ms  0: gives it back
-- ARGV[3] gone      rows that were deleted, from here on
-- RETURNS OK, rows that are marked as moved (only where the lease is new) | HELD (another has it)
-- JOURNALS nothing
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {'HELD'} end
for i = 3, #ARGV do redis.call('SREM', KEYS[2], ARGV[i]) end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return {'OK'}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return holder and {'OK'} or {'OK', unpack(redis.call('SMEMBERS', KEYS[2]))}
