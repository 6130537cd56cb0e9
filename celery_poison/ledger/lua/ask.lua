-- ask: a person asks for an act that needs two persons; it is granted to the second who asks for the same.
-- KEYS[1] asked    hash
-- KEYS[2] journal  stream
-- ARGV[1] maxlen
-- ARGV[2] act      hash of what is asked for
-- ARGV[3] wish     JSON object: person (the same one on every surface), actor, act, messages, note
-- ARGV[4] journalled     the note of the journal
-- ARGV[5] keep_ms  for which the first one's wish stands
-- RETURNS OK, the first one's wish, now (ms) | KEPT, the same: it waits for a second one
-- JOURNALS act_asked_for | act_agreed_to
local now, wish = now_ms(), cjson.decode(ARGV[3])
for act, text in pairs(hash(KEYS[1])) do
  local read, other = pcall(cjson.decode, text)
  local ends = read and type(other) == 'table' and tonumber(other.until_ms)
  if not ends or ends <= now then redis.call('HDEL', KEYS[1], act) end
end
local text = redis.call('HGET', KEYS[1], ARGV[2])
local first = text and cjson.decode(text)
local agreed = first and first.person ~= wish.person
if agreed then
  redis.call('HDEL', KEYS[1], ARGV[2])
elseif not first then
  wish.at_ms, wish.until_ms = now, now + tonumber(ARGV[5])
  text = cjson.encode(wish)
  redis.call('HSET', KEYS[1], ARGV[2], text)
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
if agreed or not first then
  journal(KEYS[2], ARGV[1], {event = agreed and 'act_agreed_to' or 'act_asked_for', actor = wish.actor, note = ARGV[4]})
end
return {agreed and 'OK' or 'KEPT', text, now}
