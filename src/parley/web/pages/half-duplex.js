import { mountCall } from './call.js';

void mountCall('half_duplex');
