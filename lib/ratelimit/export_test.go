package ratelimit

// Remembered says how many refusals a limiter remembers.
func Remembered(l *Limiter) int {
	l.refused.mu.Lock()
	defer l.refused.mu.Unlock()
	return len(l.refused.kept)
}

// Held returns how many keys, refunds and audit rows a MemoryStore holds.
func (m *MemoryStore) Held() (keys, refunds, audits int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keys.len(), m.refunds.len(), len(m.audits)
}

// LocalKeys returns how many keys a limiter remembers of outages.
func LocalKeys(l *Limiter) int { return int(l.local.kept.Load()) }
