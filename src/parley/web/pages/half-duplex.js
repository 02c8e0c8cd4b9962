import { HalfDuplexCall } from '../talk/half-duplex.js';
import { mountCall } from './call.js';

void mountCall('half_duplex', { CallOfKind: HalfDuplexCall });
