-- rows: some fields of many messages as one text; changes nothing.
-- KEYS[1] quarantine zset; is not read; by it a cluster finds the node
-- ARGV[1] messages  prefix of the keys of messages
-- ARGV[2] number    of fields
-- ARGV[3] words     their names, and then mids
-- RETURNS OK, a JSON array of an array for each mid: its values, false where a field is not there
-- JOURNALS nothing
local number, rows = tonumber(ARGV[2]), {}
local fields = {unpack(ARGV, 3, 2 + number)}
for i = 3 + number, #ARGV do
  rows[#rows + 1] = redis.call('HMGET', ARGV[1] .. ARGV[i], unpack(fields))
end
return {'OK', cjson.encode(rows)}
