-- park: a copy that may not run now is kept here, so that its delivery can be acknowledged.
-- KEYS[1] running hash
-- KEYS[2] done    hash
-- KEYS[3] parked  hash
-- KEYS[4] parcels hash
-- KEYS[5] awaited hash
-- KEYS[6] journal stream
-- ARGV[1] maxlen
-- ARGV[2] mid
-- ARGV[3] seen    the raw start that stands in its way, '' for none: it goes to its trial, its task is paused, or it is not due
-- ARGV[4] start   of the copy
-- ARGV[5] number  of the parking that published this copy, 0 for none
-- ARGV[6] parcel  the original message
-- ARGV[7] limit_bytes  of what is parked; '' for none
-- ARGV[8] pause_ms  for which it stays at least, 0 for none
-- ARGV[9] note    why it is parked; '' for as the others say
-- ARGV[10] effect  the key for which it waits, '' for none
-- RETURNS OK | KEPT (a copy is parked already, one is enough) | HELD (there is no room) | CONFLICT (look again, or that one is no copy)
-- JOURNALS parked
local raw = redis.call('HGET', KEYS[1], ARGV[2]) or ''
if raw ~= ARGV[3] then return {'CONFLICT'} end
local behind = raw ~= '' and start_of(raw).token or nil
if behind and redis.call('HGET', KEYS[2], behind) == 'D' then return {'CONFLICT'} end
local p, number = parking_of(KEYS[3], ARGV[2]), tonumber(ARGV[5])
if p and number > 0 and number < p.number then return {'CONFLICT'} end
-- The copy that was just published came back before that was noted: under a new number, it is none any more.
local is_back = p and p.state == 'waiting' and number == p.number
local pause = tonumber(ARGV[8])
if p and p.state == 'waiting' and not is_back then
  if not is_unique(ARGV[2]) then return {'CONFLICT'} end
  -- The copy ran before it was due, since its acknowledgement was lost: it stays for the longer pause.
  local due = now_ms() + pause
  if pause > 0 and due > (tonumber(redis.call('HGET', KEYS[5], ARGV[2])) or 0) then
    redis.call('HSET', KEYS[5], ARGV[2], due)
  end
  return {'KEPT'}
end
if not has_room(KEYS[4], #ARGV[6], ARGV[7]) then return {'HELD'} end
local e = start_of(ARGV[4])
local why = ARGV[9] ~= '' and ARGV[9] or pause > 0 and 'until it is due' or e.alone ~= 0 and 'for its trial' or 'its task is paused'
redis.call('HSET', KEYS[3], ARGV[2], parking_text('waiting', raised(p), e))
redis.call('HSET', KEYS[4], ARGV[2], ARGV[6])
-- What an earlier parking of it waited for holds it up no more.
if pause > 0 then redis.call('HSET', KEYS[5], ARGV[2], now_ms() + pause)
elseif ARGV[10] ~= '' then redis.call('HSET', KEYS[5], ARGV[2], ARGV[10])
else redis.call('HDEL', KEYS[5], ARGV[2]) end
journal(KEYS[6], ARGV[1], {event = 'parked', id = e.id, mid = ARGV[2], token = e.token, task = e.task,
  queue = e.queue, worker = e.worker, state = 'TBDL', note = behind or why})
return {'OK'}
