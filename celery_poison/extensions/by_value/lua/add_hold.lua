-- add_hold: messages whose arguments fall under some conditions do not begin from now on.
-- KEYS[1] value_holds hash
-- KEYS[2] journal stream
-- ARGV[1] maxlen
-- ARGV[2] where   JSON array of conditions
-- ARGV[3] task    a name or a pattern
-- ARGV[4] waits   1: they wait in the ledger
-- ARGV[5] lasts_ms 0: until a person lifts it
-- ARGV[6] actor
-- ARGV[7] note
-- ARGV[8] journalled    the note of the journal
-- ARGV[9] most    holds that there may be, but for those that are over: nobody looks at them
-- ARGV[10] kept_ms  for which one that is over stays on record; what it left in quarantine has its number
-- RETURNS OK, number | HELD (there are as many)
-- JOURNALS hold_added
local now, lasts, count = now_ms(), tonumber(ARGV[5]), 0
for field, text in pairs(hash(KEYS[1])) do
  if field:sub(1, 5) == 'hold:' then
    local is_read, each = pcall(cjson.decode, text)
    local ends = is_read and type(each) == 'table' and tonumber(each.until_ms) or 0
    if ends == 0 or ends > now then count = count + 1
    elseif ends < now - tonumber(ARGV[10]) then redis.call('HDEL', KEYS[1], field) end
  end
end
if count >= tonumber(ARGV[9]) then return {'HELD'} end
-- By the number of one that was lifted messages may still be named.
local number = redis.call('HINCRBY', KEYS[1], 'last', 1)
redis.call('HSET', KEYS[1], 'hold:' .. number, cjson.encode({where = cjson.decode(ARGV[2]), task = ARGV[3],
  waits = tonumber(ARGV[4]), since_ms = now, until_ms = lasts > 0 and now + lasts or 0, actor = ARGV[6],
  note = ARGV[7]}))
raise_version(KEYS[1], now)
journal(KEYS[2], ARGV[1], {event = 'hold_added', actor = ARGV[6], note = 'hold ' .. number .. ': ' .. ARGV[8]})
return {'OK', number}
