package ratelimit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// maxSealedBytes bounds a sealed reservation: the reservations of MaxCharges limits take some 4,500 bytes, and twice as much while
// shards change.
const maxSealedBytes = 16 << 10

// sealed is a Reservation as it is written. Its names are short because clients carry it around.
type sealed struct {
	ID        int64     `json:"i"`
	Key       int64     `json:"k"`
	OtherKey  int64     `json:"o,omitempty"`
	Rotating  bool      `json:"r,omitempty"`
	Name      string    `json:"n"`
	Algorithm Algorithm `json:"a"`
	Limit     int64     `json:"l"`
	Capacity  int64     `json:"q"`
	Window    int64     `json:"w"` // microseconds
	Cost      int64     `json:"c"`
	Charged   int64     `json:"t"`
	Epoch     int64     `json:"e,omitempty"`
	Sequence  int64     `json:"s"`
	Debt      int64     `json:"d,omitempty"`
	Expires   int64     `json:"x"`
	Shard     uint32    `json:"h,omitempty"`
}

// Seal writes what a decision charged as a text that can be given to a client and, from it, to Open. It names nobody, and a
// client can neither read out nor make up a charge that is not its own. It is "" when nothing was charged.
func (l *Limiter) Seal(decision Decision) string {
	var all []sealed
	for _, limit := range decision.Limits {
		for _, r := range limit.Reservation.refunds() {
			all = append(all, sealed{
				ID: r.ID, Key: r.Key, OtherKey: r.OtherKey, Rotating: r.Rotating, Name: r.Policy.Name, Algorithm: r.Policy.Algorithm,
				Limit: r.Policy.Limit, Capacity: r.Policy.Capacity(), Window: r.Policy.Window.Microseconds(), Cost: r.Cost,
				Charged: r.ChargedMicros, Epoch: r.Epoch, Sequence: r.Sequence, Debt: r.Debt, Expires: r.ExpiresMicros, Shard: r.Shard,
			})
		}
	}
	if len(all) == 0 {
		return ""
	}
	payload, err := json.Marshal(all)
	if err != nil {
		panic("ratelimit: a reservation can't be written: " + err.Error()) // it holds numbers and a plain name
	}
	return base64.RawURLEncoding.EncodeToString(append(seal(l.secret, payload), payload...))
}

// Open reads what Seal wrote, under the limiter's secret or its other one. An error matches ErrReservation.
func (l *Limiter) Open(text string) ([]Reservation, error) {
	if len(text) > maxSealedBytes {
		return nil, fmt.Errorf("%w: %d bytes long: allowed are %d", ErrReservation, len(text), maxSealedBytes)
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) < sha256.Size {
		return nil, fmt.Errorf("%w: it is not the text of one", ErrReservation)
	}
	mac, payload := data[:sha256.Size], data[sha256.Size:]
	if !hmac.Equal(mac, seal(l.secret, payload)) && (l.other == nil || !hmac.Equal(mac, seal(l.other, payload))) {
		return nil, fmt.Errorf("%w: it was not made here", ErrReservation)
	}
	var all []sealed
	if err := json.Unmarshal(payload, &all); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReservation, err)
	}
	reservations := make([]Reservation, 0, len(all))
	for _, s := range all {
		policy := Policy{Name: s.Name, Algorithm: s.Algorithm, Limit: s.Limit, Window: time.Duration(s.Window) * time.Microsecond}
		switch s.Algorithm {
		case TokenBucket:
			policy.Burst = s.Capacity
		case LeakyBucket:
			policy.Queue = s.Capacity - 1
		}
		if err := policy.Validate(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrReservation, err)
		}
		reservations = append(reservations, Reservation{refund: Refund{
			ID: s.ID, Key: s.Key, OtherKey: s.OtherKey, Rotating: s.Rotating, Policy: policy, Cost: s.Cost,
			ChargedMicros: s.Charged, Epoch: s.Epoch, Sequence: s.Sequence, Debt: s.Debt, ExpiresMicros: s.Expires, Shard: s.Shard,
		}})
	}
	return reservations, nil
}

// seal authenticates a payload. No message that a key is derived from begins like this one: those begin with the length of
// a policy's name, 64 at the most.
func seal(secret, payload []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("reservation\x00"))
	mac.Write(payload)
	return mac.Sum(nil)
}
