-- originals: what is published again of some messages; changes nothing.
-- KEYS[1] quarantine zset; is not read; by it a cluster finds the node
-- ARGV[1] messages  prefix of the keys of messages
-- ARGV[2] number    of fields
-- ARGV[3] words     their names, the body's first, and then mids
-- RETURNS OK, as rows but for the bodies, and then each body, since that may be no text
-- JOURNALS nothing
local number, rows, bodies = tonumber(ARGV[2]), {}, {}
local fields = {unpack(ARGV, 3, 2 + number)}
for i = 3 + number, #ARGV do
  local row = redis.call('HMGET', ARGV[1] .. ARGV[i], unpack(fields))
  bodies[#bodies + 1] = row[1]
  row[1] = false
  rows[#rows + 1] = row
end
return {'OK', cjson.encode(rows), unpack(bodies)}
