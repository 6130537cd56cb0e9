-- note_notified: what a receiver of poison_notify was told, or that it could not be; and what is forgotten of that.
-- KEYS[1] monitor_fence string
-- KEYS[2] notified hash
-- KEYS[3] counts   hash
-- ARGV[1] fence
-- ARGV[2] outcome  sent | failed | '' nobody was told anything
-- ARGV[3] changes  field and value by turns, from here on; an empty value: forget the field
-- RETURNS OK | FENCED
-- JOURNALS nothing
if fenced(KEYS[1], ARGV[1]) then return {'FENCED'} end
for i = 3, #ARGV - 1, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
if ARGV[2] ~= '' then count(KEYS[3], 'notified', ARGV[2]) end
return {'OK'}
