-- index: a page of what is in quarantine or was given up, newest first, as one text; changes nothing.
-- KEYS[1] quarantine zset; or failed
-- ARGV[1] below  score of the newest
-- ARGV[2] above  score of the oldest
-- ARGV[3] skip   so many first
-- ARGV[4] size   at most so many
-- RETURNS OK, a JSON array of mid, score, ...; an empty object where there are none
-- JOURNALS nothing
local page = redis.call('ZREVRANGEBYSCORE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', ARGV[3], ARGV[4])
return {'OK', cjson.encode(page)}
