-- ask: somebody asks for an act that needs two persons; the second who asks for the same has it.
-- KEYS[1] asked    hash
-- KEYS[2] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] person   who it is, whatever the surface calls them
-- ARGV[3] actor
-- ARGV[4] said     what is journalled as the note
-- ARGV[5] keep_ms  for which the first one's wish stands
-- RETURNS OK, who asked first | KEPT, who asked first, for how many ms more it stands
-- JOURNALS act_asked_for | act_agreed_to
local first = redis.call('HMGET', KEYS[1], 'person', 'actor')
local agreed = first[1] and first[1] ~= ARGV[2]
if agreed then
  redis.call('DEL', KEYS[1])
elseif not first[1] then
  redis.call('HSET', KEYS[1], 'person', ARGV[2], 'actor', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
if agreed or not first[1] then
  journal(KEYS[2], ARGV[1], {event = agreed and 'act_agreed_to' or 'act_asked_for', actor = ARGV[3], note = ARGV[4]})
end
return {agreed and 'OK' or 'KEPT', first[2] or ARGV[3], redis.call('PTTL', KEYS[1])}
