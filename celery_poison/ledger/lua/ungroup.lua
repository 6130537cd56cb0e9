-- ungroup: messages that an older version took out of quarantine, and left in their group, leave that too.
-- KEYS[1] quarantine zset
-- KEYS[2] groups     prefix
-- ARGV[1] kind       queue | fingerprint
-- ARGV[2] task
-- ARGV[3] cause
-- ARGV[4] third      the queue, or the fingerprint
-- ARGV[5] mids       of the group, from here on
-- RETURNS OK
-- JOURNALS nothing
local labels = cjson.encode({ARGV[2], ARGV[3], ARGV[4]})
local key = group_key(KEYS[2], ARGV[1], labels)
for i = 5, #ARGV do
  if not redis.call('ZSCORE', KEYS[1], ARGV[i]) then leave_group(key, ARGV[i]) end
end
count_group(KEYS[2], ARGV[1], labels, key)
return {'OK'}
