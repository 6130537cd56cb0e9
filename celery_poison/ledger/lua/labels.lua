-- labels: some of the groups by fingerprint, as one text; changes nothing.
-- KEYS[1] groups  prefix
-- ARGV[1] cursor  0 to begin
-- ARGV[2] match   a pattern of Redis for the labels
-- ARGV[3] count   looked at, about
-- RETURNS OK, the cursor, a JSON array in a line for each: its labels, messages, its key
-- JOURNALS nothing
local reply, rows = redis.call('ZSCAN', KEYS[1] .. ':fingerprint', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3]), {}
local flat = reply[2]
for i = 1, #flat, 2 do
  local sha = redis.sha1hex('fingerprint' .. flat[i]) -- as _groups.lua does
  rows[#rows + 1] = '[' .. flat[i] .. ',' .. flat[i + 1] .. ',"' .. sha .. '"]'
end
return {'OK', reply[1], table.concat(rows, '\n')}
