-- take_notices: all that was left for a worker that may send events; no other worker gets them.
-- KEYS[1] untold hash
-- RETURNS OK, list of id, notice, ...
-- JOURNALS nothing
local notices = redis.call('HGETALL', KEYS[1])
redis.call('DEL', KEYS[1])
return {'OK', notices}
